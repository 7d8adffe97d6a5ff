"""Sizes on a program's command line that the program itself refuses, as a table of known programs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Job, Launch, is_whole_number
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import counted
from preflight.sources.conditions import UnknownValue, holds
from preflight_rules.data_tables import table
from preflight_rules.launches import ranks_started

_RANKS = "ranks"


class _Program(NamedTuple):
    """One row of the table."""

    name: str
    match: str
    needs: tuple[str, ...]
    options: dict[str, int]
    when: str
    at: str
    why: str
    remedy: str
    severity: str
    source: str


@functools.cache
def _programs() -> tuple[_Program, ...]:
    return tuple(_Program(**{**row, "needs": tuple(row["needs"])}) for row in table("programs")["program"])


@rule(
    "BAT025",
    "program-sizes-refused",
    severity=Severity.ERROR,
    otherwise="no launch starts a program whose sizes are known",
)
def program_sizes_refused(job: Job) -> Iterator[Verdict]:
    """A known program is given batch sizes or parallel degrees that do not fit the ranks that are started.

    What it checks: A table of programs (OpenRLHF's trainers, finetrainers, YOLOv5 and its like) with the options that
    they compute with, their defaults, and the condition under which they stop.

    Why it matters: The program compares its sizes with the number of ranks first of all, and every rank stops with an
    AssertionError or ValueError.

    Example: `deepspeed --num_gpus 7 --module openrlhf.cli.train_sft --train_batch_size 256 --micro_train_batch_size 2`.

    Fix: The finding names the numbers that have to divide each other.

    Known limits: A program that is known only by its options gets a warning.
    """
    for launch in job.launches:
        given = _options(launch)
        for row in _programs():
            if re.fullmatch(row.match, launch.program) is None or not all(name in given for name in row.needs):
                continue
            yield _judged(job, launch, row, given)


def _judged(job: Job, launch: Launch, row: _Program, given: dict[str, str | None]) -> Verdict:
    def value_of(name: str) -> int:
        if name == _RANKS:
            found = numbers(ranks_started(job, launch.scope)[0])
            if len(found) != 1:
                raise UnknownValue("the number of ranks")
            return int(found[0])
        if name not in given:
            if None in launch.arguments:
                raise UnknownValue(f"`--{name}` may be among the arguments")
            return row.options[name]
        text = given[name]
        if text is None or not is_whole_number(text.lstrip("-")):
            raise UnknownValue(f"the value of `--{name}`")
        return int(text)

    try:
        if not holds(row.when, value_of):
            return passed(launch.id)
    except UnknownValue as error:
        return unknown(launch.id, f"{row.name}: {error} is unknown", at=launch)
    value, because = ranks_started(job, launch.scope)
    written = next((w for w in launch.arguments if w and _bare(w.partition("=")[0]) == row.at), f"--{row.at}")
    shown = f"`{written}`" if "=" in written else f"`{written} {value_of(row.at)}`"
    shown += "" if row.at in given else f" (the default of {row.name})"
    return failed(
        launch.id,
        f"{shown} on {counted(int(numbers(value)[0]), 'rank')} {row.why}.",
        at=launch,
        also=tuple((claim, "ranks") for claim in because[:1]),
        remedy=row.remedy,
        severity=None if row.severity == "error" else Severity.WARNING,
    )


def _options(launch: Launch) -> dict[str, str | None]:
    """The options of a program by their bare names, with their values; None for one that is not known."""
    found: dict[str, str | None] = {}
    words = launch.arguments
    for index, word in enumerate(words):
        if word is None or not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        found[_bare(name)] = value if equals else following
    return found


def _bare(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
