"""Numbers as people read them: a few digits, and a unit that fits the size."""

from __future__ import annotations

from collections.abc import Sequence

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Seconds in smaller units: from which value on, by what it is multiplied, and how that is called.
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def told(value: float, unit: str = "") -> str:
    """`value` with its unit: `1.5 GiB`, `12 ms`, `98.4 Gbit/s`, `1,024`."""
    if unit in ("bytes", "B"):
        return _bytes(value)
    if unit == "s":
        return _seconds(value)
    number = digits(value)
    return f"{number} {unit}" if unit else number


def between(values: Sequence[float], unit: str = "") -> str:
    """`1.2 to 1.4 s`, or one number where they are told alike."""
    first, last = told(min(values), unit), told(max(values), unit)
    if first == last:
        return first
    number, _, own = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {own}") and own else f"{first} to {last}"


def digits(value: float) -> str:
    """A number with three digits that matter, and all digits of one that was counted."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not a number" if value != value else ("endless" if value > 0 else "endless below zero")
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """`part` of `whole` in per cent, as short as geometry allows."""
    if not whole > 0 or part != part:
        return "0"
    return f"{max(0.0, min(100.0, 100.0 * part / whole)):.2f}".rstrip("0").rstrip(".")


def _bytes(value: float) -> str:
    size, index = abs(value), 0
    while size >= 1024 and index < len(_BINARY) - 1:
        size, index = size / 1024, index + 1
    sign = "-" if value < 0 else ""
    number = digits(size) if index else f"{size:.0f}"
    return f"{sign}{number} {_BINARY[index]}"


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for least, factor, unit in _SECONDS:
        if abs(value) >= least:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value)} s"
