"""Robust statistics over series with gaps: a few wild values change none of them.

Median and MAD: F. R. Hampel, "The influence curve and its role in robust estimation", 1974. Slope: P. K. Sen,
"Estimates of the regression coefficient based on Kendall's tau", 1968.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

#: The median absolute deviation times this is the standard deviation of a normal distribution.
NORMAL = 1.4826
#: The standard error of a median, compared with that of a mean.
OF_A_MEDIAN = 1.2533

Point = tuple[int, float]


def spread(values: Sequence[float]) -> float:
    """The deviation of the values from their median: 1.4826 times the median absolute deviation; 0 for no values."""
    if not values:
        return 0.0
    centre = median(values)
    return NORMAL * median([abs(value - centre) for value in values])


def noise(values: Sequence[float]) -> float:
    """The deviation of a series from run to run. A trend or a step does not add to it."""
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return NORMAL * median(steps) / math.sqrt(2) if steps else 0.0


def tail(count: int, of: int, chance: float) -> float:
    """The probability of at least `count` successes in `of` trials, each with this `chance`."""
    if count <= 0 or chance >= 1.0:
        return 1.0
    if chance <= 0.0:
        return 0.0
    first = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    term = math.exp(first + count * math.log(chance) + (of - count) * math.log1p(-chance))
    total = 0.0
    for k in range(count, of + 1):
        total += term
        term *= (of - k) / (k + 1) * chance / (1 - chance)
    return min(1.0, total)


@dataclass(frozen=True, slots=True)
class Slope:
    """The slope of a series by Theil and Sen, with its interval of 95 %, in units per step of x."""

    value: float
    low: float
    high: float


def theil_sen(points: Sequence[Point]) -> Slope:
    """The median of the slopes between all pairs of points. Needs points with at least two different x."""
    slopes = sorted(
        (later - earlier) / (x2 - x1)
        for number, (x1, earlier) in enumerate(points)
        for x2, later in points[number + 1 :]
        if x2 != x1
    )
    n = len(points)
    # Sen's interval: the variance of Kendall's statistic gives the ranks of its ends.
    half = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18) / 2
    low = max(0, math.floor(len(slopes) / 2 - half))
    high = min(len(slopes) - 1, math.ceil(len(slopes) / 2 + half))
    return Slope(median(slopes), slopes[low], slopes[high])


@dataclass(frozen=True, slots=True)
class Shape:
    """How a series changed: at the point `at` of it, in one step or slowly; `before` and `after` are its levels.

    `error` is the sum of absolute deviations from this shape.
    """

    at: int
    is_step: bool
    before: float
    after: float
    error: float


def step_error(values: Sequence[float], at: int) -> float:
    """The sum of absolute deviations from a step at the point `at`."""
    sides = [side for side in (values[:at], values[at:]) if side]
    return sum(abs(value - middle) for side in sides for middle in (median(side),) for value in side)


def shape_of(values: Sequence[float], *, least: int = 3) -> Shape:
    """The step, or the start of a slope, that fits a series best by the sum of absolute deviations.

    A slow change is modelled as a level that is followed by a slope to the end. Needs at least `2 * least` values.
    """
    count = len(values)
    best_step, best_ramp = (math.inf, least, 0.0, 0.0), (math.inf, 0, 0.0, 0.0)
    for at in range(least, count - least + 1):
        error = step_error(values, at)
        if error < best_step[0]:
            best_step = (error, at, median(values[:at]), median(values[at:]))
    for at in range(count - 2 * least + 1):
        before = median(values[: max(at, least)])
        rest = [(place + 0.5, value) for place, value in enumerate(values[at:])]
        # Near its start a slope is lost in the noise; the later half of its points says how steep it is.
        slope = median([(value - before) / place for place, value in rest[len(rest) // 2 :]])
        error = sum(abs(v - before) for v in values[:at])
        error += sum(abs(v - before - slope * place) for place, v in rest)
        if error < best_ramp[0]:
            best_ramp = (error, at, before, before + slope * (count - at))
    if best_step[0] <= best_ramp[0]:
        return Shape(best_step[1], True, best_step[2], best_step[3], best_step[0])
    return Shape(best_ramp[1], False, best_ramp[2], best_ramp[3], best_ramp[0])


def known(values: Iterable[float | None]) -> list[Point]:
    """The values that are known, each with its place."""
    return [(place, value) for place, value in enumerate(values) if value is not None]
