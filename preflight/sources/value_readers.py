"""Functions that read the values of settings: from a value as written to the value of the quantity.

`READERS` has them by the names that the tables of keys use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from preflight.model.job import Known, Plain, Unresolved, Value, as_int, is_whole_number, lift
from preflight.model.job.value import Symbol

Reader: TypeAlias = Callable[[Value], Value]

_TRUE = ("true", "1", "yes", "on", "y", "t")
_FALSE = ("false", "0", "no", "off", "n", "f", "")
#: Number formats, by the names that most frameworks use.
_FORMATS = {
    **dict.fromkeys(("16", "16-mixed", "16-true", "fp16", "float16", "amp_fp16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true", "bfloat16", "amp_bf16"), "bf16"),
    **dict.fromkeys(("32", "32-true", "64", "64-true", "fp32", "float32", "float"), "no"),
    **dict.fromkeys(("amp_fp8", "fp8"), "fp8"),
}
#: Activation functions whose feed-forward part has a gate.
GATED = frozenset(("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu"))
#: One engine of AReaL's allocation: `fsdp:d4p1t2`, `sglang.d4t2`.
_ALLOCATION = re.compile(r"[\w-]*[:.]?(?P<sizes>(?:[dptcea]\d{1,5})+)", re.DOTALL)
_SIZE = re.compile(r"([a-z])(\d{1,5})")


def of_each(function: Callable[[Plain], Plain]) -> Reader:
    """Return a reader that applies `function` to each alternative."""
    return lambda value: lift(function, value)


def as_text(value: Value) -> Value:
    """Return the value as a string. False becomes `no`, because YAML reads an unquoted `no` as false."""
    return lift(lambda item: item if isinstance(item, str) else "no" if item is False else str(item), value)


def as_strings(value: Value, separator: str = ",") -> Value:
    """Split a string into a tuple of its non-empty, stripped members."""
    return lift(lambda item: tuple(part.strip() for part in str(item).split(separator) if part.strip()), value)


def _path(item: Plain) -> str:
    """Return a folder or file; an address of object storage (`s3://bucket/run`) is neither."""
    text = str(item)
    if "://" in text or not text.strip():
        raise ValueError(f"{text[:80]}: not a path in a file system")
    return text


def as_bool(value: Value) -> Value:
    """Return `true`, `"True"`, 1 as booleans; anything else is unresolved."""
    return lift(_bool, value)


def _bool(item: Plain) -> bool:
    text = str(item).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"{item!r} is neither true nor false")
    return text in _TRUE


def _strict_bool(item: Plain) -> bool:
    if not isinstance(item, bool):
        raise ValueError(f"{item!r} is neither true nor false")
    return item


def as_float(value: Value) -> Value:
    """Return a floating-point number, also from a string: YAML reads `1e-4` as a string."""
    return lift(_float, value)


def _float(item: Plain) -> float:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"not a number: {item!r}")
    return float(item)


def as_number(value: Value) -> Value:
    """Return a whole number; `???` must be replaced."""
    return Unresolved("`???`, which must be replaced") if value == Known("???") else as_int(value)


def as_count(value: Value) -> Value:
    """Return a positive number; `???` must be replaced, and -1 leaves the number to the framework."""
    return lift(_positive, as_number(value))


def _positive(item: Plain) -> Plain:
    if not isinstance(item, int) or item < 1:
        raise ValueError(f"{item}: left to the framework")
    return item


def _degree(item: Plain) -> int:
    """Return a parallel size; -1 and 0 turn that kind of parallelism off or leave it to the library."""
    number = int(str(item))
    if number < 1:
        raise ValueError(f"{item}: {Symbol.LIBRARY_DEFAULT.value}")
    return number


def _names(item: Plain) -> tuple[str, ...]:
    """Return the names in `A,B` or in a list."""
    parts = item if isinstance(item, tuple) else str(item).split(",")
    return tuple(name for part in parts if (name := str(part).strip()))


def count_of(value: Value) -> Value:
    """Return the number of members of a tuple value."""
    return lift(lambda item: len(item) if isinstance(item, tuple) else 1, value)


def sum_of(*items: Plain) -> Plain:
    """Return the sum of whole numbers, which may be texts; for `lift`."""
    return sum(int(str(item)) for item in items)


def product_of(one: Plain, other: Plain) -> Plain:
    """Return the product of two whole numbers, which may be texts; for `lift`."""
    return int(str(one)) * int(str(other))


def first_of(value: Value) -> Value:
    """Return the first member of a list in a text; an empty string if there is none."""
    return lift(lambda item: item[0] if isinstance(item, tuple) and item else "", as_strings(value))


def index_of(item: Plain, members: Plain) -> Plain:
    """Return the position of an item in a list; for `lift`."""
    if not isinstance(members, tuple) or item not in members:
        raise ValueError(f"{item} is not in the list")
    return members.index(item)


def as_gflag(value: Value) -> Value:
    """Return a boolean of gflags, which does not take `on` and `off`."""
    return lift(_gflag, value)


def _gflag(item: Plain) -> bool:
    text = str(item).strip().lower()
    if text not in ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"):
        raise ValueError(f"{item}: neither true nor false")
    return text in ("1", "true", "t", "yes", "y")


def ordinal_or(words: tuple[str, ...]) -> Reader:
    """Return a reader of one of these words in upper case, or of its number, counted from 1; without words, in lower
    case.
    """

    def read(item: Plain) -> str:
        text = str(item).strip()
        if is_whole_number(text) and 0 < int(text) <= len(words):
            return words[int(text) - 1]
        return text.upper() if words else text.lower()

    return of_each(read)


def _word_of(words: Mapping[str, str], kind: str) -> Reader:
    """Return a reader that translates one of a few words into the vocabulary of claims; any other word is
    unresolved.
    """

    def read(item: Plain) -> Plain:
        found = words.get(str(item).lower())
        if found is None:
            raise ValueError(f"{item!r} is not a {kind}")
        return found

    return of_each(read)


def _devices(item: Plain) -> Plain:
    """Return `8`, `"8"`, `[0, 1]` as a count; `-1` and `auto` mean all devices."""
    if str(item) in ("auto", "-1"):
        raise ValueError("all devices of the node")
    return len(item) if isinstance(item, tuple) else item


def as_devices(value: Value) -> Value:
    """Return the number of devices in `8`, `0,1` or `[0, 1]` on a line; anything else means those of the node."""
    return lift(_listed_devices, value)


def _listed_devices(item: Plain) -> int:
    text = str(item).strip("'\"")
    listed = re.fullmatch(r"\[([\d,\s]*)\]", text)
    if listed is not None or "," in text:
        return len([part for part in (listed[1] if listed else text).split(",") if part.strip()])
    if not is_whole_number(text):
        raise ValueError(f"{text} starts one process per device, and the number of devices is unknown")
    return int(text)


def _count_or_auto(value: Value) -> Value:
    return Unresolved("auto: found by trial in the first steps") if value == Known("auto") else as_int(value)


def _limit(item: Plain) -> Plain:
    if int(str(item)) < 1:
        raise ValueError("no step limit")
    return int(str(item))


def _allocated(letter: str) -> Reader:
    """Return the size with this letter in AReaL's `fsdp:d4p1t2`; 1 if it has none."""

    def size(item: Plain) -> Plain:
        match = _ALLOCATION.fullmatch(str(item))
        if match is None:
            raise ValueError(f"{item!r} is not the allocation of a single engine")
        return int(dict(_SIZE.findall(match["sizes"])).get(letter, "1"))

    return of_each(size)


READERS: dict[str, Reader] = {
    "any": lambda value: value,
    "count": as_count,
    "int": as_int,
    "float": as_float,
    "flag": as_bool,
    "gflag": as_gflag,
    "boolean": of_each(_strict_bool),
    "path": of_each(_path),
    "text": as_text,
    #: The members of a list in a text, their number, and the first of them.
    "strings": as_strings,
    "entries": lambda value: count_of(as_strings(value)),
    "first": first_of,
    "names": of_each(_names),
    "degree": of_each(_degree),
    "lower": of_each(lambda item: str(item).lower()),
    #: `no` without quotation marks is YAML's false.
    "lower_no": of_each(lambda item: "no" if item is False else str(item).lower()),
    "number": as_number,
    "limit": of_each(_limit),
    #: A parallel degree, of which 0 means the same as 1.
    "at_least_one": of_each(lambda item: max(int(str(item)), 1)),
    "above_zero": of_each(lambda item: int(str(item)) > 0),
    "count_or_auto": _count_or_auto,
    "listed_devices": as_devices,
    "address": of_each(lambda item: str(item).strip("[]")),
    "devices": lambda value: as_number(lift(_devices, value)),
    #: GPUs of one node; those of several nodes are a list of lists, which has no single number.
    "length": of_each(lambda item: len(item) if isinstance(item, tuple) and item else 1),
    "minutes": of_each(lambda item: int(float(str(item)) * 60)),
    "format": _word_of(_FORMATS, "number format"),
    "neox_format": of_each(lambda item: {"bfloat16": "bf16"}.get(str(item), str(item))),
    "gated": of_each(lambda item: str(item) in GATED),
    "recompute": _word_of({word: word for word in ("full", "selective", "none")}, "recomputation mode"),
    "full_if_true": of_each(lambda item: "full" if item is True else "none"),
    **{f"areal_{name}": _allocated(name[0]) for name in ("data", "tensor", "pipeline", "context")},
}
