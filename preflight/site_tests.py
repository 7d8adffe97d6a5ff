"""Tests that a site writes down for a value: `at-most = 16`, `one-of = [...]`. Of several, all have to hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from preflight.configuration import Test
from preflight.lazy.dataclasses import dataclass
from preflight.settings import SPELLED, Problem

#: Those that say there is something, or nothing; the others say what it is.
PRESENCE = ("required", "forbidden")
TESTS = ("equals", "one-of", "none-of", "at-most", "at-least", "matches", "includes", *PRESENCE)

Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Tested:
    """What a value has to be."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    equals: Annotated[Plain | None, "It is this."] = None
    one_of: Annotated[list[Plain] | None, "It is one of these."] = None
    none_of: Annotated[list[Plain] | None, "It is none of these; of several values, none is."] = None
    at_most: Annotated[float | None, "It is a number, and at most this."] = None
    at_least: Annotated[float | None, "It is a number, and at least this."] = None
    matches: Annotated[str | None, "The whole of it matches this regular expression."] = None
    includes: Annotated[list[Plain] | None, "Of its several values, these are there."] = None
    required: Annotated[bool | None, "It is said at all."] = None
    forbidden: Annotated[bool | None, "It is not said at all."] = None


def tests_of(item: Tested) -> tuple[Test, ...]:
    """The tests, in one order whatever order they were written in."""
    found: list[Test] = []
    for kind in TESTS:
        said = getattr(item, kind.replace("-", "_"))
        if said is not None:
            found.append(Test(kind, tuple(said) if isinstance(said, list) else (said,)))
    return tuple(found)


def problems_of(item: Tested, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """What is wrong with the tests that stand at `path` of a document."""
    tests = tests_of(item)
    if not tests:
        yield Problem(path, f"nothing is asked of it; one of {', '.join(TESTS)} is expected", at_value=False)
    for test in tests:
        if test.kind in PRESENCE and test.values != (True,):
            yield Problem((*path, test.kind), f"`{test.kind}` is true or left out")
        if test.kind in PRESENCE and len(tests) > 1:
            yield Problem((*path, test.kind), f"`{test.kind}` stands alone; what it has to be is a rule of its own")
    if item.matches is not None and (why := pattern_problem(item.matches)):
        yield Problem((*path, "matches"), why)


def pattern_problem(pattern: str) -> str:
    """Why a text is no regular expression; empty when it is one."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"that is no regular expression: {error}"
    return ""
