"""Finds where the variable in a claim was assigned.

That is the line to edit, not the one that makes the claim: `--nnodes=$NNODES` is correct, `NNODES=8` above it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from preflight.model.job import Claim, Known, Span, alternatives
from preflight.sources.base import Command, Variable, Word

#: `$NAME`, `${NAME}` and `${NAME:-default}`; any other expansion is computed and has no single origin.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-[^{}$]*)?\})")
#: An assignment whose whole value is another variable.
_SINGLE_VARIABLE = re.compile(r"\"?\$(?:(\w+)|\{(\w+)\})\"?")
#: A parameter, alone or as part of `--port=*) PORT=${1#*=}`.
_PARAMETER = re.compile(r"\"?\$(?:\d|\{\d\})\"?")
#: Steps followed in `A=$B`, `B=$C`.
_MAX_CHAIN = 5


def with_origins(claims: Iterable[Claim], command: Command) -> tuple[Claim, ...]:
    """Add to each claim made from a single known variable the location of its assignment."""
    variables: dict[str, Variable] = {}
    outer = command.outer
    while outer is not None:
        variables = {**outer.variables, **outer.positional, **variables}
        outer = outer.outer
    variables.update(command.variables)
    variables.update(command.positional)
    arguments = command.outer.words[1:] if command.outer is not None else ()
    return tuple(_with_origin(claim, variables, arguments) for claim in claims)


def _with_origin(claim: Claim, variables: Mapping[str, Variable], arguments: Sequence[Word]) -> Claim:
    because = tuple(_with_origin(reason, variables, arguments) for reason in claim.because)
    origin = _origin(claim, variables, arguments) if "$" in claim.spelling else None
    if origin is None and because == claim.because:
        return claim
    return replace(claim, because=because, origin=origin)


def _origin(claim: Claim, variables: Mapping[str, Variable], arguments: Sequence[Word]) -> Span | None:
    found = _VARIABLE.search(claim.spelling)
    if found is None or claim.spelling.count("$") != 1:
        return None
    variable = variables.get(found[1] or found[2])
    # A variable set in branches has no single origin, and its last value may differ from the one the word used.
    if variable is None or not isinstance(variable.value, Known) or not _comes_from(claim, found, variable):
        return None
    for _ in range(_MAX_CHAIN):
        single = _SINGLE_VARIABLE.fullmatch(variable.spelling)
        before = variables.get(single[1] or single[2]) if single is not None else None
        if before is None or before.value != variable.value or before.span == variable.span:
            break
        variable = before
    if _PARAMETER.fullmatch(variable.spelling):
        # `--port) PORT=$2; shift 2`: the parameters have moved on, but the caller gave the value only once.
        given = [word for word in arguments if word.value == variable.value]
        if len(given) == 1 and given[0].span != claim.span:
            return given[0].span
    return None if variable.span == claim.span else variable.span


def _comes_from(claim: Claim, match: re.Match[str], variable: Variable) -> bool:
    """Whether a claim's values are those of the variable, alone or within the rest of the word."""
    given = [str(item) for item in alternatives(variable.value)]
    claimed = [",".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in claim.alternatives]
    if not given or len(given) != len(claimed):
        return False
    bare = claim.spelling.replace('"', "")
    start, stop = bare.find(match[0]), bare.find(match[0]) + len(match[0])
    return all(
        value == text or (bool(text) and text in value and f"{bare[:start]}{text}{bare[stop:]}".endswith(value))
        for text, value in zip(given, claimed, strict=True)
    )
