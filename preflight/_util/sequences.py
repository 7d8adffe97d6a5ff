"""Sequences: grouping, shortening for display and the variation of values; and values deep in plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the second members of the pairs as lists by the first member, in order of appearance."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def join_some(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` items and the number of the others: `a, b and 3 more`."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def deviation_from(middle: float, values: Iterable[float]) -> float:
    """Return 1.4826 times the median distance from `middle`: the standard deviation without outliers."""
    from statistics import median

    return 1.4826 * median(abs(value - middle) for value in values)


def value_at(document: object, *path: str | int) -> Any:
    """Return the value at a path of keys and indexes in plain data, such as TOML or JSON; None if it does not exist."""
    found: Any = document
    for step in path:
        if isinstance(found, Mapping):
            found = found.get(str(step))
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    return found
