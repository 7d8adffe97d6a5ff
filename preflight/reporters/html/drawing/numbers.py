"""Numbers for people: few digits, and a unit that fits the magnitude."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.reporters.html.drawing.colors import LEVELS

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


#: From this ratio of largest to smallest value on, levels are equal factors instead of equal steps.
_WIDE = 8.0
#: The highest level begins below this share of all values and contains everything above.
_USUAL = 0.98
#: The smallest width of a level, as a share of the median.
_MIN_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Scale:
    """The bounds between levels, lowest first; there is one more level than bounds."""

    bounds: tuple[float, ...]
    minimum: float
    maximum: float

    def level(self, value: float) -> int:
        """Return the level of the value, from 0."""
        return bisect_left(self.bounds, value)

    def style(self, value: float) -> str:
        """Return the class of the value's level."""
        return LEVELS[self.level(value)]

    def labels(self, unit: str) -> tuple[tuple[str, str], ...]:
        """Return class and range of every level, lowest first."""
        if not self.bounds:
            return ((LEVELS[0], format_range((self.minimum, self.maximum), unit)),)
        edges = (self.minimum, *self.bounds, self.maximum)
        return tuple((LEVELS[n], format_range((edges[n], edges[n + 1]), unit)) for n in range(len(edges) - 1))


def scale_of(values: Sequence[float]) -> Scale:
    """Return the scale of these values, of which there is at least one. Equal values give one level."""
    ordered = sorted(values)
    minimum, maximum = ordered[0], ordered[-1]
    if not maximum > minimum:
        return Scale((), minimum, maximum)
    count = len(LEVELS)
    usual = ordered[int((len(ordered) - 1) * _USUAL)]
    top = usual if usual > minimum else maximum
    if minimum > 0 and top / minimum >= _WIDE:
        step = math.log(top / minimum) / count
        return Scale(tuple(minimum * math.exp(step * n) for n in range(1, count)), minimum, maximum)
    # Values that hardly differ must not look different.
    step = max((top - minimum) / count, _MIN_STEP * abs(ordered[len(ordered) // 2]))
    bounds = (minimum + step * n for n in range(1, count))
    return Scale(tuple(bound for bound in bounds if bound < maximum), minimum, maximum)
