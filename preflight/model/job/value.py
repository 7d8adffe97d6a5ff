"""The value of a quantity as read from files: one value, one of a few, or one that is known only at run time.

`Unresolved` is neither wrong nor absent: a rule may call a value faulty only when *every* alternative is faulty, so it
never calls an unresolved one faulty.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = str | int | float | bool | None
Plain: TypeAlias = Scalar | tuple[Scalar, ...]

#: More alternatives than this are not worth following; the value becomes unresolved.
MAX_ALTERNATIVES = 16
#: At most this many combinations of alternatives are computed, so that hostile input cannot cause an explosion.
MAX_COMBINATIONS = 4096
_REFUSED = re.compile(r"not a whole number: (?P<quote>['\"])(?P<text>.*)(?P=quote)(?:, nor .*)?")
#: No size or count has more digits; `int` raises an error for thousands of digits.
_MAX_DIGITS = 18
#: A longer text is not a number of any job. `int` itself rejects thousands of digits only if it is configured to.
_MAX_NUMBER_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Known:
    """The quantity has exactly this value.

    Args:
        value: in the unit of the quantity.
    """

    value: Plain


@dataclass(frozen=True, slots=True)
class OneOf:
    """The quantity has one of these values, depending on a branch that is decided only at run time.

    Args:
        values: all possible values.
    """

    values: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The value cannot be known from the files.

    Args:
        why: what it depends on, in the user's words.
        set_by_caller: the variables that whoever submits the job sets, and that would determine the value.
    """

    why: str
    set_by_caller: tuple[str, ...] = ()


Value: TypeAlias = Known | OneOf | Unresolved

#: `"auto"` in a DeepSpeed configuration.
AUTO = Unresolved("auto: filled in by the trainer")
_NOT_A_NUMBER = "not a whole number: "
_INT_ERROR = "invalid literal for int() with base 10: "


#: No size, count or rate of any job is larger. Products of a few such numbers still fit into a float.
MAX_NUMBER = 10**18


def in_bounds(value: Value) -> Value:
    """The same value; unresolved if it is, or may be, a number larger than any quantity of a job.

    Computing with numbers from a file could otherwise overflow, or take minutes over ten thousand digits.
    """
    for one in alternatives(value):
        if isinstance(one, int | float) and not -MAX_NUMBER <= one <= MAX_NUMBER:
            return Unresolved("a number larger than any quantity of a job")
        if isinstance(one, tuple) and any(
            isinstance(item, int | float) and not -MAX_NUMBER <= item <= MAX_NUMBER for item in one
        ):
            return Unresolved("a list with a number larger than any quantity of a job")
    return value


def alternatives(value: Value) -> tuple[Plain, ...]:
    """All possible values; empty when unresolved."""
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
            if len(seen) > MAX_ALTERNATIVES:
                return Unresolved(f"one of more than {MAX_ALTERNATIVES} values")
    if not seen:
        return Unresolved("no value")
    if len(seen) == 1:
        return Known(seen[0])
    return OneOf(tuple(seen))


def join(values: Iterable[Value]) -> Value:
    """The value after branches are joined: every value that either branch could have left."""
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
            return _unresolved(error)
    if math.prod(len(alternatives(v)) for v in values) > MAX_COMBINATIONS:
        return Unresolved(f"one of more than {MAX_COMBINATIONS} combinations")
    results: list[Plain] = []
    for combination in itertools.product(*(alternatives(v) for v in values)):
        try:
            results.append(function(*combination))
        except (ValueError, TypeError, ArithmeticError) as error:
            return _unresolved(error)
    return one_of(results)


def _unresolved(error: Exception) -> Unresolved:
    text = str(error)
    return Unresolved(_NOT_A_NUMBER + text.removeprefix(_INT_ERROR) if text.startswith(_INT_ERROR) else text)


def not_a_number(text: str, hint: str = "") -> Unresolved:
    """The value of a number that is written as this string; `hint` names further forms that the reader accepts."""
    return Unresolved(f"{_NOT_A_NUMBER}{text!r}{hint}")


def refused_number(value: Value) -> str | None:
    """The string that is not the number that its reader expects; None for any other value."""
    found = _REFUSED.fullmatch(value.why) if isinstance(value, Unresolved) else None
    return found["text"] if found else None


def as_int(value: Value) -> Value:
    """The same value as whole numbers; strings such as `"8"` are converted, anything else is unresolved."""
    return lift(_whole_number, value)


def _whole_number(item: Plain) -> int:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{_NOT_A_NUMBER}{item!r}")
    if isinstance(item, float):
        if item != int(item):
            raise ValueError(f"{_NOT_A_NUMBER}{item!r}")
        return int(item)
    if isinstance(item, str) and len(item) > _MAX_NUMBER_LENGTH:
        raise ValueError("not a whole number: the text is too long")
    return int(item)


def is_whole_number(text: str) -> bool:
    """Whether `int` accepts this string: ASCII digits, and few enough. `str.isdigit` alone also accepts `²`."""
    return 0 < len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal()


def numbers(value: Value) -> tuple[int, ...]:
    """All possible whole numbers, with strings such as "8" converted; empty when any alternative is not one."""
    return tuple(n for n in alternatives(as_int(value)) if isinstance(n, int))


def texts(value: Value) -> tuple[str, ...]:
    """All possible strings; empty when unresolved or when any alternative is not a string."""
    found = alternatives(value)
    return tuple(str(item) for item in found) if all(isinstance(item, str) for item in found) else ()
