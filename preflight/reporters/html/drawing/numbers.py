"""Numbers for people: few digits, and a unit that fits the magnitude."""

from __future__ import annotations

from collections.abc import Sequence

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Units of time below one second: from which value on, factor, name.
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def format_number(value: float, unit: str = "") -> str:
    """Format `value` with its unit: `1.5 GiB`, `12 ms`, `98.4 Gbit/s`, `1,024`."""
    if unit in ("bytes", "B"):
        return _bytes(value)
    if unit == "s":
        return _seconds(value)
    number = digits(value)
    return f"{number} {unit}" if unit else number


def format_range(values: Sequence[float], unit: str = "") -> str:
    """Format a range: `1.2 to 1.4 s`, or one number if both ends look the same."""
    first, last = format_number(min(values), unit), format_number(max(values), unit)
    if first == last:
        return first
    number, _, own = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {own}") and own else f"{first} to {last}"


def digits(value: float) -> str:
    """Format a number with three significant digits; a count with all its digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not a number" if value != value else ("endless" if value > 0 else "minus infinity")
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Format `part` as a percentage of `whole` with up to two decimals, enough to draw a length."""
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
