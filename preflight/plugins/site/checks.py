"""Checks that a site defines in a TOML file: a command on each node, and its expected answer. No code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from preflight._util.schema_problems import HYPHENATED, Problem
from preflight.model.configuration import Condition, SiteCheck
from preflight.plugins.site.conditions import Requirements, pattern_problem, problems_of, tests_of

MAX_DEADLINE_S = 60.0
_PATH = re.compile(r"[^.]+(\.[^.]+)*")


@dataclass(frozen=True, slots=True)
class Value(Requirements):
    """A value in the JSON that a command prints, and the requirements on it."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    json: Annotated[str, "Its path of keys and indexes from 0: disks.0.free."] = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a site."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM201."] = ""
    name: Annotated[str, "The fault in lower-case words: scratch-not-mounted."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "Address of the document that requires it."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "Severity of its findings. Default: warning."] = "warning"
    command: Annotated[list[str], "The command and its arguments, one string each; no shell is used."] = field(
        default_factory=list
    )
    deadline: Annotated[float, "Time limit in seconds, at most 60. Default: 5."] = 5.0
    context: Annotated[bool, "Run it as the ranks run: in their directory, environment and container."] = False
    nodes: Annotated[Literal["every", "first"], "On every node, or only on the node of rank 0."] = "every"
    exit: Annotated[list[int], "Exit codes that pass. Default: 0."] = field(default_factory=lambda: [0])
    warning_exit: Annotated[list[int], "Exit codes that are a warning."] = field(default_factory=list)
    unknown_exit: Annotated[list[int], "Exit codes that mean that the command could not decide."] = field(
        default_factory=list
    )
    output: Annotated[str | None, "Regular expression that must match in its standard output."] = None
    agree: Annotated[bool, "Its standard output must be the same on all nodes."] = False
    value: Annotated[list[Value], "Requirements on values in the JSON on its standard output."] = field(
        default_factory=list
    )
    absent: Annotated[
        Literal["unknown", "fault", "pass"], "The result on a node without this command. Default: unknown."
    ] = "unknown"
    required: Annotated[bool, "Whether the verdict is incomplete without an answer. Default: true."] = True


def problems(item: Check, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """The errors of the check at `path` of a document that its types cannot express."""
    if not item.command or not item.command[0].strip():
        yield Problem((*path, "command"), '`command` is empty; expected a list such as ["df", "-h"]')
    elif any("\0" in word for word in item.command):
        yield Problem((*path, "command"), "`command` contains a character that an argument cannot contain")
    elif len(item.command) == 1 and " " in item.command[0].strip():
        words = ", ".join(f'"{word}"' for word in item.command[0].split())
        yield Problem(
            (*path, "command"), f"`command` runs without a shell; write each word as its own string: [{words}]"
        )
    if not 0 < item.deadline <= MAX_DEADLINE_S:
        yield Problem((*path, "deadline"), f"`deadline` must be more than 0 and at most {MAX_DEADLINE_S:g} seconds")
    said = [*item.exit, *item.warning_exit, *item.unknown_exit]
    for key, codes in (("exit", item.exit), ("warning-exit", item.warning_exit), ("unknown-exit", item.unknown_exit)):
        for n, code in enumerate(codes):
            if not 0 <= code <= 255:
                yield Problem((*path, key, n), f"{code} is not an exit code; use 0 to 255")
            elif said.count(code) > 1:
                yield Problem((*path, key, n), f"the exit code {code} has two meanings; list it once")
    if item.output is not None and (why := pattern_problem(item.output)):
        yield Problem((*path, "output"), why)
    for n, value in enumerate(item.value):
        if not _PATH.fullmatch(value.json):
            yield Problem(
                (*path, "value", n), "`json` must be the path of a value, such as disks.0.free", at_value=False
            )
        yield from problems_of(value, (*path, "value", n))


def to_configuration(item: Check, file: str) -> SiteCheck:
    """The check in the form of a configuration."""
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
