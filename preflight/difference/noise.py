"""How much of a difference between two measurements is noise, by the scatter of the fleet's own differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from preflight.difference.model import Noise
from preflight.lazy.dataclasses import dataclass

#: With fewer ratios than this their scatter says nothing.
ENOUGH_RATIOS = 8
#: As many deviations from the usual are no noise; of a normal distribution one in 16 000 is beyond them.
DEVIATIONS = 4.0
#: Makes the median deviation of a normal distribution its standard deviation.
_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which factors the limit lies, whatever the scatter says.

    Args:
        floor: less is never told, because two good measurements of one link differ as much.
        ceiling: more is always told; also the limit where there are too few ratios to know their scatter.
    """

    floor: float
    ceiling: float


def noise_of(ratios: Sequence[float], limits: Limits) -> Noise:
    """The noise in `ratios`, each of which says how many times as bad one thing became.

    Their scatter is the median absolute deviation of their logarithms: as long as fewer than half of them are faults,
    faults do not widen it.
    """
    if len(ratios) < ENOUGH_RATIOS:
        why = f"too few to know how much they scatter; more than a factor of {limits.ceiling:g} is told"
        return Noise(len(ratios), None, limits.ceiling, why)
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    spread = math.exp(_TO_DEVIATION * statistics.median(abs(value - middle) for value in logs))
    # Compared as logarithms, because the factor itself may be too large for a number.
    wanted = DEVIATIONS * math.log(spread)
    said = f"the fleet's ratios scatter by a factor of {spread:.3g} (median absolute deviation of {len(ratios)})"
    if wanted <= math.log(limits.floor):
        return Noise(len(ratios), spread, limits.floor, f"{said}; less than a factor of {limits.floor:g} is never told")
    if wanted >= math.log(limits.ceiling):
        why = f"{said}; more than a factor of {limits.ceiling:g} is always told"
        return Noise(len(ratios), spread, limits.ceiling, why)
    return Noise(len(ratios), spread, math.exp(wanted), f"{said}; more than a factor of {math.exp(wanted):.3g} is told")
