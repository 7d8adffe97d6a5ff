"""Where the value of a word was assigned, for claims made from a word that only names a variable.

The line to edit is then not the one that makes the claim: `--nnodes=$NNODES` is right, `NNODES=8` above it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from preflight.job import Claim, Known, Span, alternatives
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Variable

#: `$NAME`, `${NAME}` and `${NAME:-default}`; anything else is computed, and no single place gives the value.
_NAMED = lazy_pattern(r"\$(?:(\w+)|\{(\w+)(?::?-[^{}$]*)?\})")
#: An assignment whose whole value is another variable.
_ONLY = lazy_pattern(r"\"?\$(?:(\w+)|\{(\w+)\})\"?")
#: `A=$B`, `B=$C` is followed this far.
_LONGEST_CHAIN = 5


def with_origins(claims: Iterable[Claim], command: Command) -> tuple[Claim, ...]:
    """The claims, each one that is made from a single known variable with the place of that assignment."""
    variables: dict[str, Variable] = {}
    outer = command.outer
    while outer is not None:
        variables = {**outer.variables, **variables}
        outer = outer.outer
    variables.update(command.variables)
    return tuple(_with_origin(claim, variables) for claim in claims)


def _with_origin(claim: Claim, variables: Mapping[str, Variable]) -> Claim:
    because = tuple(_with_origin(reason, variables) for reason in claim.because)
    origin = _origin(claim, variables) if "$" in claim.spelling else None
    if origin is None and because == claim.because:
        return claim
    return replace(claim, because=because, origin=origin)


def _origin(claim: Claim, variables: Mapping[str, Variable]) -> Span | None:
    found = _NAMED.search(claim.spelling)
    if found is None or claim.spelling.count("$") != 1:
        return None
    variable = variables.get(found[1] or found[2])
    # One that branches set has no single place; and what the shell saw last may be another value than the word's.
    if variable is None or not isinstance(variable.value, Known) or not _comes_from(claim, found, variable):
        return None
    for _ in range(_LONGEST_CHAIN):
        only = _ONLY.fullmatch(variable.spelling)
        before = variables.get(only[1] or only[2]) if only is not None else None
        if before is None or before.value != variable.value or before.span == variable.span:
            break
        variable = before
    return None if variable.span == claim.span else variable.span


def _comes_from(claim: Claim, found: re.Match[str], variable: Variable) -> bool:
    """Whether a claim's values are those of the variable, alone or with what the word has around it."""
    given = [str(item) for item in alternatives(variable.value)]
    said = [",".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in claim.alternatives]
    if not given or len(given) != len(said):
        return False
    bare = claim.spelling.replace('"', "")
    start, stop = bare.find(found[0]), bare.find(found[0]) + len(found[0])
    return all(
        value == text or (bool(text) and text in value and f"{bare[:start]}{text}{bare[stop:]}".endswith(value))
        for text, value in zip(given, said, strict=True)
    )
