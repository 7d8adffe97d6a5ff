"""Tests that a site defines for a value: `at-most = 16`, `one-of = [...]`. The value must pass all of them.

Values are compared as a person would compare them: the text "8" equals the number 8. The result is undecided if two
values cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from preflight._util.validation import HYPHENATED, Problem
from preflight.model.configuration import Test
from preflight.model.job import Plain as ClaimValue

#: The tests for existence; all others test the value.
PRESENCE = ("required", "forbidden")
TESTS = ("equals", "one-of", "none-of", "at-most", "at-least", "matches", "includes", *PRESENCE)

Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements on a value."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    equals: Annotated[Plain | None, "The value equals this."] = None
    one_of: Annotated[list[Plain] | None, "The value is one of these."] = None
    none_of: Annotated[
        list[Plain] | None, "The value is not one of these; if there are several values, none of them is."
    ] = None
    at_most: Annotated[float | None, "The value is a number, and at most this."] = None
    at_least: Annotated[float | None, "The value is a number, and at least this."] = None
    matches: Annotated[str | None, "The whole value matches this regular expression."] = None
    includes: Annotated[list[Plain] | None, "There are several values, which include these."] = None
    required: Annotated[bool | None, "The value is given."] = None
    forbidden: Annotated[bool | None, "The value is not given."] = None


def tests_of(item: Requirements) -> tuple[Test, ...]:
    """Return the tests that `item` sets, in the order of `TESTS`."""
    tests: list[Test] = []
    for kind in TESTS:
        value = getattr(item, kind.replace("-", "_"))
        if value is not None:
            tests.append(Test(kind, tuple(value) if isinstance(value, list) else (value,)))
    return tuple(tests)


def problems_of(item: Requirements, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield the errors of the tests at `path` of a document."""
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
    """Return the reason why a string is not a valid regular expression; empty if it is valid."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"it is not a valid regular expression: {error}"
    return ""


#: The largest length of a text that is matched: regular expressions may take very long on longer text.
_MAX_MATCHED_LENGTH = 2000


def passes_all(tests: Sequence[Test], value: ClaimValue) -> bool | None:
    """Return whether a value passes all tests; None if one of them cannot be applied."""
    results = [_passes(test, value) for test in tests]
    return False if False in results else None if None in results else True


def format_tests(tests: Iterable[Test]) -> str:
    """Return the tests as text: `at least 2 and at most 16`."""
    parts = []
    for test in tests:
        values = ", ".join(plain(value) for value in test.values)
        parts.append(test.kind.replace("-", " ") + ("" if test.kind in ("required", "forbidden") else f" {values}"))
    return " and ".join(parts)


def _passes(test: Test, value: ClaimValue) -> bool | None:
    items = value if isinstance(value, tuple) else (value,)
    if test.kind == "includes":
        return all(any(_is_same_value(test_value, item) for item in items) for test_value in test.values)
    results = [_passes_one(test, item) for item in items]
    return False if False in results else None if None in results else True


def _passes_one(test: Test, item: ClaimValue) -> bool | None:
    if test.kind in ("equals", "one-of"):
        return any(_is_same_value(test_value, item) for test_value in test.values)
    if test.kind == "none-of":
        return not any(_is_same_value(test_value, item) for test_value in test.values)
    if test.kind == "matches":
        text = plain(item)
        return None if len(text) > _MAX_MATCHED_LENGTH else re.fullmatch(str(test.values[0]), text) is not None
    number, limit = _as_number(item), _as_number(test.values[0])
    if number is None or limit is None:
        return None
    return number <= limit if test.kind == "at-most" else number >= limit


def _is_same_value(test_value: ClaimValue, item: ClaimValue) -> bool:
    """Return whether a person would call two values equal: "8" is the number 8, and "true" is true."""
    if isinstance(test_value, bool) or isinstance(item, bool):
        return plain(test_value).lower() == plain(item).lower()
    numbers = _as_number(test_value), _as_number(item)
    if None not in numbers and not (isinstance(test_value, str) and isinstance(item, str)):
        return numbers[0] == numbers[1]
    return plain(test_value) == plain(item)


def _as_number(value: ClaimValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def plain(value: ClaimValue) -> str:
    """Return a value as written in files."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, tuple):
        return ",".join(plain(item) for item in value)
    return "" if value is None else str(value)
