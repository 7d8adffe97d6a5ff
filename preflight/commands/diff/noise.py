"""Estimates how much of a difference between two measurements is noise, from the scatter of the fleet's differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.commands.diff.difference import Noise

#: With fewer ratios than this their scatter is meaningless.
MIN_RATIOS = 8
#: Number of deviations that counts as noise; in a normal distribution one in 16,000 values is beyond.
DEVIATIONS = 4.0
#: Converts the median deviation of a normal distribution into its standard deviation.
_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the limit, whatever the scatter.

    Args:
        floor: smaller factors are never reported, because two good measurements of one link differ as much.
        ceiling: larger factors are always reported; also the limit if there are too few ratios to know their scatter.
    """

    floor: float
    ceiling: float


def noise_of(ratios: Sequence[float], limits: Limits) -> Noise:
    """Return the noise in `ratios`, each of which tells how many times worse one measurement became.

    The scatter is the median absolute deviation of their logarithms: faults do not widen it as long as they are fewer
    than half.
    """
    if len(ratios) < MIN_RATIOS:
        why = f"too few to know how much they scatter; more than a factor of {limits.ceiling:g} is reported"
        return Noise(len(ratios), None, limits.ceiling, why)
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    spread = math.exp(_TO_DEVIATION * statistics.median(abs(value - middle) for value in logs))
    # Compared as logarithms, because the factor itself may overflow.
    wanted = DEVIATIONS * math.log(spread)
    basis = f"the fleet's ratios scatter by a factor of {spread:.3g} (median absolute deviation of {len(ratios)})"
    if wanted <= math.log(limits.floor):
        return Noise(
            len(ratios), spread, limits.floor, f"{basis}; less than a factor of {limits.floor:g} is never reported"
        )
    if wanted >= math.log(limits.ceiling):
        why = f"{basis}; more than a factor of {limits.ceiling:g} is always reported"
        return Noise(len(ratios), spread, limits.ceiling, why)
    return Noise(
        len(ratios), spread, math.exp(wanted), f"{basis}; more than a factor of {math.exp(wanted):.3g} is reported"
    )
