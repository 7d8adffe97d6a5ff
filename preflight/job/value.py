"""What a file says a quantity is: one value, one of a few, or something that only run time can tell.

`Unresolved` is not wrong and not absent: a rule may only call a value faulty when *every* alternative is
faulty, so an unresolved one can never be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from preflight.lazy.dataclasses import dataclass

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Scalar | tuple[Scalar, ...]

#: More alternatives than this are not worth following; the value becomes unresolved.
MOST_ALTERNATIVES = 16
#: Nor are more combinations of alternatives than this computed: hostile input must not make them explode.
MOST_COMBINATIONS = 4096


@dataclass(frozen=True, slots=True)
class Known:
    """The quantity has exactly this value.

    Args:
        value: in the unit of the quantity.
    """

    value: Plain


@dataclass(frozen=True, slots=True)
class OneOf:
    """The quantity has one of these values, depending on a branch nobody can decide before run time.

    Args:
        values: every one that is possible.
    """

    values: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The value cannot be known from the files; `why` says what it depends on, in the user's words."""

    why: str


Value: TypeAlias = Known | OneOf | Unresolved


def alternatives(value: Value) -> tuple[Plain, ...]:
    """All values this can have; empty when unresolved."""
    if isinstance(value, Known):
        return (value.value,)
    if isinstance(value, OneOf):
        return value.values
    return ()


def one_of(values: Iterable[Plain]) -> Value:
    """The value that is one of `values`, in first-seen order, collapsed when they are all the same."""
    seen: list[Plain] = []
    for candidate in values:
        if not any(candidate == s and type(candidate) is type(s) for s in seen):
            seen.append(candidate)
            if len(seen) > MOST_ALTERNATIVES:
                return Unresolved(f"one of more than {MOST_ALTERNATIVES} values")
    if not seen:
        return Unresolved("no value")
    if len(seen) == 1:
        return Known(seen[0])
    return OneOf(tuple(seen))


def join(values: Iterable[Value]) -> Value:
    """The value after branches meet: everything either branch could have left."""
    found: list[Plain] = []
    for value in values:
        if isinstance(value, Unresolved):
            return value
        found.extend(alternatives(value))
    return one_of(found)


def lift(function: Callable[..., Plain], *values: Value) -> Value:
    """Apply `function` to every combination of alternatives.

    Unresolved when any operand is, or when `function` raises ValueError, TypeError or ArithmeticError.
    """
    for value in values:
        if isinstance(value, Unresolved):
            return value
    if len(values) == 1 and isinstance(values[0], Known):
        try:
            return Known(function(values[0].value))
        except (ValueError, TypeError, ArithmeticError) as error:
            return Unresolved(str(error))
    if math.prod(len(alternatives(v)) for v in values) > MOST_COMBINATIONS:
        return Unresolved(f"one of more than {MOST_COMBINATIONS} combinations")
    results: list[Plain] = []
    for combination in itertools.product(*(alternatives(v) for v in values)):
        try:
            results.append(function(*combination))
        except (ValueError, TypeError, ArithmeticError) as error:
            return Unresolved(str(error))
    return one_of(results)


def as_int(value: Value) -> Value:
    """The same value as whole numbers; text such as `"8"` is read, anything else is unresolved."""
    return lift(_whole_number, value)


def _whole_number(item: Plain) -> int:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"not a whole number: {item!r}")
    if isinstance(item, float):
        if item != int(item):
            raise ValueError(f"not a whole number: {item!r}")
        return int(item)
    return int(item)
