"""Combinations of script features, settings and releases that a framework refuses, or in which ranks hang."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Plain, Scope, Strength, Unresolved, is_whole_number
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted, why_unresolved
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import table
from preflight_rules.launches import nodes_spanned, ranks_started
from preflight_rules.settings.tables import cut, pinned, release

_FEATURE = "script_feature"
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = {"true": True, "false": False}


class _Combination(NamedTuple):
    """One row of the table."""

    name: str
    all: tuple[str, ...]
    why: str
    remedy: str
    severity: str
    source: str
    none: tuple[str, ...] = ()


class _Undecided(Exception):
    """A term depends on a value that is not known; which the argument names."""


class _Met(NamedTuple):
    """A term that holds: the claims that show it, and the text that replaces `{}`."""

    claims: tuple[Claim, ...]
    text: str = ""
    certain: bool = True
    named: bool = True


@functools.cache
def _combinations() -> tuple[_Combination, ...]:
    rows = table("combinations")["combination"]
    return tuple(_Combination(**{**row, "all": tuple(row["all"]), "none": tuple(row.get("none", ()))}) for row in rows)


@rule("CFG008", "combination-refused", severity=Severity.ERROR, otherwise="nothing of a known combination is there")
def combination_refused(job: Job) -> Iterator[Verdict]:
    """What a script does, its settings and the releases exclude each other: the framework stops, or the ranks hang.

    What it checks: A table of combinations, each with its source: calls of the scripts, settings of files and command
    lines, and releases that the files pin. Among them are processes that are spawned while a script is imported,
    samplers for streams, adapters in one flat parameter of FSDP, float16 weights with a scaler, checkpoints with a
    search for unused parameters, functions with a collective that one rank calls, stages of sharding, attributes that a
    wrapper hides, process groups that nothing makes, and functions that cannot be pickled for a spawned process.

    Why it matters: Each part is right alone, so that nothing complains before all ranks run; then every rank stops with
    an exception, or waits until a timeout.

    Example: `mp.spawn(run, nprocs=4)` at the end of a script without `if __name__ == "__main__":`.

    Fix: The finding names the change for its combination.

    Known limits: A part that stands under a condition makes the finding a warning. What a library does inside is not
    seen.
    """
    seen: set[tuple[str, str, int]] = set()
    for subject, scope, launch in subjects(job):
        fine = False
        for row in _combinations():
            for verdict in _judged(job, row, subject, scope, launch):
                if verdict is None:
                    fine = True
                    continue
                at = verdict.locations[0]
                if (row.name, at.path, at.line) not in seen:
                    seen.add((row.name, at.path, at.line))
                    yield verdict
        if fine:
            yield passed(subject)


def _judged(job: Job, row: _Combination, subject: str, scope: Scope, launch: Launch | None) -> Iterator[Verdict | None]:
    """The verdicts of one row; None where its first term holds and another does not."""
    if row.all[0].startswith("package ") and not all(
        _names(job, term.split(" ")[1]) for term in row.all if term.startswith("package ")
    ):
        # Two releases exclude each other: a package that no file names is not there.
        return
    try:
        firsts = list(_firsts(job, row.all[0], scope, launch))
    except _Undecided as error:
        with contextlib.suppress(_Undecided):
            if all(_met(job, term, scope, launch) for term in row.all[1:] if "{}" not in term):
                for claim in job.setting(row.all[0].split(" ")[0], scope)[:1]:
                    yield unknown(subject, str(error), at=claim)
        return
    for first in firsts:
        try:
            others = [_met(job, term.replace("{}", first.text), scope, launch) for term in row.all[1:]]
            if not all(others):
                yield None
                continue
            if any(_met(job, term, scope, launch) for term in row.none):
                yield None
                continue
        except _Undecided as error:
            yield unknown(subject, f"{quoted(first.claims[0])}: {error}", at=first.claims[0])
            continue
        yield _failed(row, subject, first, [met for met in others if met is not None])


def _firsts(job: Job, term: str, scope: Scope, launch: Launch | None) -> Iterator[_Met]:
    """Each way in which the first term of a row holds. Raises _Undecided if that is not known."""
    kind, _, rest = term.partition(" ")
    if kind != "feature":
        met = _met(job, term, scope, launch)
        if met is not None:
            yield met
        return
    prefix, joined, _ = rest.partition("{}")
    for claim in job.about(_FEATURE, scope):
        for text in texts(claim.value):
            if text == rest or (joined and text.startswith(prefix)):
                yield _Met((claim,), text.removeprefix(prefix) if joined else "", certain=not claim.condition)


def _met(job: Job, term: str, scope: Scope, launch: Launch | None) -> _Met | None:
    """How a term holds; None if it does not. Raises _Undecided if that is not known."""
    words = term.split(" ")
    if words[0] == "feature":
        feature = term.partition(" ")[2]
        found = [claim for claim in job.about(_FEATURE, scope) if feature in texts(claim.value)]
        certain = any(not claim.condition for claim in found)
        return _Met(tuple(found[:1]), certain=certain) if found else None
    if term in ("several ranks", "certainly several ranks"):
        met = _several_ranks(job, scope, launch)
        return met if met is not None and (met.certain or term == "several ranks") else None
    if term == "no default of accelerate":
        by_accelerate = launch is not None and launch.launcher == "accelerate"
        return _Met((), certain=not by_accelerate or bool(job.setting("distributed_type", scope)))
    if term == "plain python":
        plain = [claim for claim in job.about("plain_program", scope) if not job.launches]
        return _Met(tuple(plain[:1]), certain=not (plain and plain[0].condition)) if plain else None
    if term == "visible devices beyond the request":
        return _beyond_request(job, scope, launch)
    if words[0] == "launched":
        return _Met((), named=False) if launch is not None and launch.launcher in words[2].split("|") else None
    if words[0] == "started":
        started = {text for claim in job.about("script", scope) for text in texts(claim.value)}
        return _Met((), named=False) if term.partition(" ")[2] in started else None
    if words[0] == "argument":
        given = [word or "" for word in launch.arguments] if launch is not None else []
        return _Met((), named=False) if any(re.fullmatch(f"--({words[1]})(=.*)?", word) for word in given) else None
    if words[0] == "written":
        found = [claim for claim in job.setting(words[1], scope) if re.search(words[2], claim.spelling)]
        return _Met(tuple(found[:1])) if found else None
    if term == "several nodes":
        nodes, claims = nodes_spanned(job, launch) if launch is not None else (Unresolved("no launch"), ())
        return _Met(claims[:1], named=False) if numbers(nodes) and min(numbers(nodes)) > 1 else None
    if words[0] in ("perhaps", "pinned"):
        try:
            return _package(job, words[2], words[3], words[4])
        except _Undecided:
            return _Met((), certain=False) if words[0] == "perhaps" else None
    if words[0] == "package":
        return _package(job, words[1], words[2], words[3])
    return _claimed(job, words[0], words[1], words[2], scope, launch)


def _several_ranks(job: Job, scope: Scope, launch: Launch | None) -> _Met | None:
    """Whether the launch starts several ranks. A number that is not known is no reason to keep silent."""
    value, claims = ranks_started(job, scope) if launch is not None else (Unresolved("no launch"), ())
    found = numbers(value)
    if found and max(found) <= 1:
        return None
    return _Met(claims[:1] if found else (), certain=bool(found) and min(found) > 1, named=False)


def _beyond_request(job: Job, scope: Scope, launch: Launch | None) -> _Met | None:
    """CUDA_VISIBLE_DEVICES with a number that the GPUs of a request do not have, which are numbered from 0."""
    visible = job.setting("env.CUDA_VISIBLE_DEVICES", scope)
    requested = [claim for claim in job.setting("gpus_per_node", scope) if claim.strength is Strength.SCHEDULER]
    if not visible or not requested or why_unresolved((*visible, *requested), launch) is not None:
        return None
    count = max(numbers(requested[0].value), default=0)
    listed = [text.split(",") for text in texts(visible[0].value)]
    beyond = all(any(is_whole_number(part) and int(part) >= count for part in parts) for parts in listed)
    return _Met((visible[0], requested[0])) if count and listed and beyond else None


def _names(job: Job, name: str) -> bool:
    """Whether the files name a distribution, whatever its release."""
    said = (text for claim in job.about("package") for text in (*texts(claim.value), claim.spelling.strip("\"'")))
    return any(re.match(rf"{name}(?![\w-])", text) is not None for text in said)


def _package(job: Job, name: str, sign: str, wanted: str) -> _Met | None:
    version = pinned(job, "paddle" if name == "paddlepaddle" else name)
    if not version:
        raise _Undecided(f"the release of {name} is not pinned")
    if sign in ("<=", "=="):
        is_met = _OPERATORS[sign](cut(version, wanted), release(wanted).release)
    else:
        is_met = _OPERATORS[sign](release(version), release(wanted))
    if not is_met:
        return None
    names = (name, f"{name}-gpu")
    found = [
        c for c in job.about("package") if any(text.startswith(f"{n}==") for n in names for text in texts(c.value))
    ]
    return _Met(tuple(found[:1]))


def _claimed(job: Job, quantity: str, sign: str, wanted: str, scope: Scope, launch: Launch | None) -> _Met | None:
    claims = job.setting(quantity, scope)
    if not claims:
        return None
    unresolved = why_unresolved(claims, launch)
    if unresolved is not None:
        raise _Undecided(f"{quoted(unresolved[0])} is unknown: {unresolved[1]}")
    held = [all(_compared(item, sign, wanted) for item in claim.alternatives) for claim in claims]
    return _Met(claims[:1]) if all(held) else None


def _compared(item: Plain, sign: str, wanted: str) -> bool:
    if sign == "matches":
        return re.search(wanted, str(item)) is not None
    if wanted in _WORDS:
        return _OPERATORS[sign](str(item).lower() in ("true", "1"), _WORDS[wanted])
    try:
        return _OPERATORS[sign](float(str(item)), float(wanted))
    except ValueError:
        return sign == "==" and str(item) == wanted


def _failed(row: _Combination, subject: str, first: _Met, others: list[_Met]) -> Verdict:
    at = first.claims[0]
    spans = {at.span}
    rest: list[Claim] = []
    for claim in (*at.because, *(claim for met in others for claim in met.claims)):
        if claim.span not in spans:
            spans.add(claim.span)
            rest.append(claim)
    parts = [met.claims[0] for met in (first, *others) if met.claims and met.claims[0].quantity == _FEATURE]
    # Parts in different files may be about different models; a name that both files give joins them.
    joined = first.text != "" or len({claim.span.path for claim in parts}) <= 1
    certain = row.severity == "error" and joined and first.certain and all(met.certain for met in others)
    named = [claim for met in others if met.named for claim in met.claims if claim in rest]
    company = f", with {placed(named[0])}," if named and not at.because else ""
    return failed(
        subject,
        f"{quoted(at)}{company} {row.why}.",
        at=at,
        also=tuple((claim, "with this") for claim in rest),
        remedy=row.remedy,
        severity=None if certain else Severity.WARNING,
    )
