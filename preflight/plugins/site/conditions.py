"""Tests that a site defines for a value: `at-most = 16`, `one-of = [...]`. All of them must hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from preflight._util.schema_problems import HYPHENATED, Problem
from preflight.model.configuration import Test

#: Tests for existence; all others test the value.
PRESENCE = ("required", "forbidden")
TESTS = ("equals", "one-of", "none-of", "at-most", "at-least", "matches", "includes", *PRESENCE)

Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements on a value."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    equals: Annotated[Plain | None, "It equals this."] = None
    one_of: Annotated[list[Plain] | None, "It is one of these."] = None
    none_of: Annotated[list[Plain] | None, "It is not one of these; if it has several values, none of them is."] = None
    at_most: Annotated[float | None, "It is a number, and at most this."] = None
    at_least: Annotated[float | None, "It is a number, and at least this."] = None
    matches: Annotated[str | None, "The whole value matches this regular expression."] = None
    includes: Annotated[list[Plain] | None, "It has several values, which include these."] = None
    required: Annotated[bool | None, "It is stated."] = None
    forbidden: Annotated[bool | None, "It is not stated."] = None


def tests_of(item: Requirements) -> tuple[Test, ...]:
    """The tests that `item` sets, in the order of `TESTS`."""
    found: list[Test] = []
    for kind in TESTS:
        value = getattr(item, kind.replace("-", "_"))
        if value is not None:
            found.append(Test(kind, tuple(value) if isinstance(value, list) else (value,)))
    return tuple(found)


def problems_of(item: Requirements, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """The errors of the tests at `path` of a document."""
    tests = tests_of(item)
    if not tests:
        yield Problem(path, f"it has no test; add one of {', '.join(TESTS)}", at_value=False)
    for test in tests:
        if test.kind in PRESENCE and test.values != (True,):
            yield Problem((*path, test.kind), f"`{test.kind}` must be true or omitted")
        if test.kind in PRESENCE and len(tests) > 1:
            yield Problem(
                (*path, test.kind), f"`{test.kind}` cannot be combined with other tests; write a second rule for them"
            )
    if item.matches is not None and (why := pattern_problem(item.matches)):
        yield Problem((*path, "matches"), why)


def pattern_problem(pattern: str) -> str:
    """Why a string is not a valid regular expression; empty if it is."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is not a valid regular expression: {error}"
    return ""
