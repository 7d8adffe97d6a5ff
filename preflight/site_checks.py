"""Checks that a site writes down in a TOML file: a command on each node, and what it has to answer. No code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from preflight.configuration import Condition, SiteCheck
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.settings import SPELLED, Problem
from preflight.site_tests import Tested, pattern_problem, problems_of, tests_of

LONGEST_DEADLINE_S = 60.0
_WAY = lazy_pattern(r"[^.]+(\.[^.]+)*")


@dataclass(frozen=True, slots=True)
class Value(Tested):
    """A value in the JSON that a command prints, and what it has to be."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    json: Annotated[str, "The way to it, by keys and numbers from 0: disks.0.free."] = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a site."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM201."] = ""
    name: Annotated[str, "The fault in lower-case words: scratch-not-mounted."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "Where that is laid down: an address."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "How bad it is; without it, warning."] = "warning"
    command: Annotated[list[str], "The command and its arguments, a text each; no shell reads them."] = field(
        default_factory=list
    )
    deadline: Annotated[float, "Seconds it may take, at most 60; without it, 5."] = 5.0
    context: Annotated[bool, "Run it as the ranks run: their directory, environment and container."] = False
    nodes: Annotated[Literal["every", "first"], "On every node, or on that of rank 0 alone."] = "every"
    exit: Annotated[list[int], "Exit codes with which all is well; without it, 0."] = field(default_factory=lambda: [0])
    warning_exit: Annotated[list[int], "Exit codes that are a warning."] = field(default_factory=list)
    unknown_exit: Annotated[list[int], "Exit codes with which it could not tell."] = field(default_factory=list)
    output: Annotated[str | None, "Its standard output holds a match of this regular expression."] = None
    agree: Annotated[bool, "Its standard output is the same on all nodes."] = False
    value: Annotated[list[Value], "What values of the JSON on its standard output have to be."] = field(
        default_factory=list
    )
    absent: Annotated[
        Literal["unknown", "fault", "pass"], "What it means that a node has no such command; without it, unknown."
    ] = "unknown"
    required: Annotated[bool, "Without an answer the verdict is incomplete; without it, true."] = True


def problems(item: Check, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """What is wrong with the check at `path` of a document, beyond what its types tell."""
    if not item.command or not item.command[0].strip():
        yield Problem((*path, "command"), '`command` names no command; expected is a list, as ["df", "-h"]')
    elif any("\0" in word for word in item.command):
        yield Problem((*path, "command"), "`command` holds a character that no argument may")
    elif len(item.command) == 1 and " " in item.command[0].strip():
        words = ", ".join(f'"{word}"' for word in item.command[0].split())
        yield Problem((*path, "command"), f"`command` is read by no shell; write its words apart: [{words}]")
    if not 0 < item.deadline <= LONGEST_DEADLINE_S:
        yield Problem((*path, "deadline"), f"`deadline` is more than 0 and at most {LONGEST_DEADLINE_S:g} seconds")
    said = [*item.exit, *item.warning_exit, *item.unknown_exit]
    for key, codes in (("exit", item.exit), ("warning-exit", item.warning_exit), ("unknown-exit", item.unknown_exit)):
        for n, code in enumerate(codes):
            if not 0 <= code <= 255:
                yield Problem((*path, key, n), f"{code} is no exit code; they are 0 to 255")
            elif said.count(code) > 1:
                yield Problem((*path, key, n), f"the exit code {code} is given two meanings")
    if item.output is not None and (why := pattern_problem(item.output)):
        yield Problem((*path, "output"), why)
    for n, value in enumerate(item.value):
        if not _WAY.fullmatch(value.json):
            yield Problem((*path, "value", n), "`json` is the way to a value, as disks.0.free", at_value=False)
        yield from problems_of(value, (*path, "value", n))


def made(item: Check, file: str) -> SiteCheck:
    """The check as a configuration keeps it."""
    return SiteCheck(
        id=item.id,
        name=item.name,
        severity=item.severity,
        message=item.message.strip(),
        remedy=item.remedy.strip(),
        evidence=item.evidence.strip(),
        command=tuple(item.command),
        deadline_s=float(item.deadline),
        context=item.context,
        first_node=item.nodes == "first",
        good=tuple(item.exit),
        warning=tuple(item.warning_exit),
        unknown=tuple(item.unknown_exit),
        output=item.output or "",
        agree=item.agree,
        values=tuple(Condition("json", value.json, tests_of(value)) for value in item.value),
        absent=item.absent,
        required=item.required,
        file=file,
    )
