"""Compares values with a site's requirements: loosely, as a person would, and undecided if they cannot be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from preflight.model.configuration import Test
from preflight.model.job import Plain

#: A longer text is not matched: regular expressions may take very long on it.
_MAX_MATCHED_LENGTH = 2000


def passes_all(tests: Sequence[Test], value: Plain) -> bool | None:
    """Whether a value passes all tests; None if one of them cannot be applied."""
    answers = [_passes(test, value) for test in tests]
    return False if False in answers else None if None in answers else True


def format_tests(tests: Iterable[Test]) -> str:
    """Format as `at least 2 and at most 16`."""
    parts = []
    for test in tests:
        values = ", ".join(plain(value) for value in test.values)
        parts.append(test.kind.replace("-", " ") + ("" if test.kind in ("required", "forbidden") else f" {values}"))
    return " and ".join(parts)


def _passes(test: Test, value: Plain) -> bool | None:
    items = value if isinstance(value, tuple) else (value,)
    if test.kind == "includes":
        return all(any(_same(wanted, item) for item in items) for wanted in test.values)
    answers = [_passes_one(test, item) for item in items]
    return False if False in answers else None if None in answers else True


def _passes_one(test: Test, item: Plain) -> bool | None:
    if test.kind in ("equals", "one-of"):
        return any(_same(wanted, item) for wanted in test.values)
    if test.kind == "none-of":
        return not any(_same(wanted, item) for wanted in test.values)
    if test.kind == "matches":
        text = plain(item)
        return None if len(text) > _MAX_MATCHED_LENGTH else re.fullmatch(str(test.values[0]), text) is not None
    number, limit = _number(item), _number(test.values[0])
    if number is None or limit is None:
        return None
    return number <= limit if test.kind == "at-most" else number >= limit


def _same(wanted: Plain, item: Plain) -> bool:
    """Whether two values are equal to a person: the text "8" of a variable is the number 8, and "true" is true."""
    if isinstance(wanted, bool) or isinstance(item, bool):
        return plain(wanted).lower() == plain(item).lower()
    numbers = _number(wanted), _number(item)
    if None not in numbers and not (isinstance(wanted, str) and isinstance(item, str)):
        return numbers[0] == numbers[1]
    return plain(wanted) == plain(item)


def _number(value: Plain) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def plain(value: Plain) -> str:
    """A value as written in files."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, tuple):
        return ",".join(plain(item) for item in value)
    return "" if value is None else str(value)
