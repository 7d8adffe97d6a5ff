"""Extreme values of a type within the limits for nodes, to test arithmetic and parsing."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import random
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

INTEGERS = (0, 1, 2, 3, 8, 80, 1024, 65535, 1 << 31, 1 << 53, (1 << 63) - 1, (1 << 64) - 1, -1, -2, -(1 << 63))
FLOATS = (0.0, 0.5, 1.0, 100.0, -1.0, -0.0, 5e-324, 1e17, 1e300, 1.7e308, -1.7e308, 253402300799.0)
TEXTS = (
    *("", " ", "0", "1", "-1", "9" * 30, "nan", "inf", "1e999", "1.5", "12.4", "8.6.1", "535.104.05", "2.1.0+cu121"),
    *("²", "\u0661", "①", "0x1f", "zz", "-", ":", "::1", "1.2.3.4", "10.0.0.0/8", "fe80::1%eth0", "a:99999", "a=b"),
    *(
        "/",
        "/dev/shm",
        "/proc/1",
        "eth0",
        "mlx5_0",
        "NVIDIA H100",
        "ok",
        "open",
        "max",
        "unlimited",
        "yes",
        "{}",
        "[1]",
    ),
    *("x" * 300, "\x1b[2J", "\u202e", "%s%d", "{0}", "a\nb", "0-3,8", "3-0", "0-99999999999", "1,,2", "Fri Nov 99"),
    *("0000:00:00.0", "ffffffff:ff:1f.7", "00:11:22:33:44:55", "2024-13-45T99:99:99Z", "9999-12-31T23:59:59+14:00"),
)


def extreme(hint: Any, chance: random.Random, depth: int = 0) -> Any:
    """A JSON value of this type; JSON knows no dataclasses, so they are objects."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return None
    if hint is Any or hint is object:
        return chance.choice((None, 0, 1 << 63, 1e308, "", "x", [], {}, [1], {"a": 1}, True))
    if origin in (typing.Union, types.UnionType):
        return extreme(chance.choice(inner), chance, depth)
    if origin is typing.Literal:
        return chance.choice(inner)
    if origin is tuple and not (len(inner) == 2 and inner[1] is ...):
        return [extreme(each, chance, depth + 1) for each in inner]
    if origin in (list, tuple, Sequence, set, frozenset):
        count = chance.choice((0, 1, 1, 2, 3)) if depth < 4 else 0
        found = [extreme(inner[0], chance, depth + 1) for _ in range(count)]
        return found + found[:1] if chance.random() < 0.2 else found
    if origin in (dict, Mapping):
        count = chance.choice((0, 1, 2, 3))
        keys = [extreme(inner[0], chance, depth + 1) for _ in range(count)]
        return {str(key): extreme(inner[1], chance, depth + 1) for key in keys}
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return chance.choice(INTEGERS)
    if hint is float:
        return chance.choice((*FLOATS, *INTEGERS))
    if hint is str:
        return chance.choice(TEXTS)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return chance.choice(list(hint)).value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return {field.name: extreme(hints[field.name], chance, depth + 1) for field in dataclasses.fields(hint)}
    raise TypeError(f"no value is known for {hint!r}")


def answer(probe: Callable[..., Any], chance: random.Random) -> Any:
    """A possible answer of this probe."""
    return extreme(typing.get_type_hints(inspect.unwrap(probe)).get("return", object), chance)
