"""A scale of five levels that separates most values and is not distorted by an outlier."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.reporters.html.drawing.colors import LEVELS
from preflight.reporters.html.drawing.numbers import format_range

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
