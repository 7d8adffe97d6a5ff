"""Which of five levels a value belongs to, so that most values are told apart and a stray one does not flatten them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from preflight.lazy.dataclasses import dataclass
from preflight.reporters.html.drawing.colors import LEVELS
from preflight.reporters.html.drawing.numbers import between

#: From this ratio of the largest to the smallest on, levels are equal factors instead of equal steps.
_WIDE = 8.0
#: The highest level begins below this share of all values, and holds whatever lies above it.
_USUAL = 0.98
#: A level is at least this share of the median wide.
_LEAST_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Scale:
    """Where one level ends and the next begins, lowest first; there is one level more than there are bounds."""

    bounds: tuple[float, ...]
    least: float
    most: float

    def level(self, value: float) -> int:
        """The number of the value's level, counted from 0."""
        return bisect_left(self.bounds, value)

    def style(self, value: float) -> str:
        """The class of the value's level."""
        return LEVELS[self.level(value)]

    def labels(self, unit: str) -> tuple[tuple[str, str], ...]:
        """Class and range of every level, lowest first."""
        if not self.bounds:
            return ((LEVELS[0], between((self.least, self.most), unit)),)
        edges = (self.least, *self.bounds, self.most)
        return tuple((LEVELS[n], between((edges[n], edges[n + 1]), unit)) for n in range(len(edges) - 1))


def scale_of(values: Sequence[float]) -> Scale:
    """The scale of these values, at least one. Equal ones have one level."""
    ordered = sorted(values)
    least, most = ordered[0], ordered[-1]
    if not most > least:
        return Scale((), least, most)
    count = len(LEVELS)
    usual = ordered[int((len(ordered) - 1) * _USUAL)]
    top = usual if usual > least else most
    if least > 0 and top / least >= _WIDE:
        step = math.log(top / least) / count
        return Scale(tuple(least * math.exp(step * n) for n in range(1, count)), least, most)
    # What hardly differs shall not look different.
    step = max((top - least) / count, _LEAST_STEP * abs(ordered[len(ordered) // 2]))
    bounds = (least + step * n for n in range(1, count))
    return Scale(tuple(bound for bound in bounds if bound < most), least, most)
