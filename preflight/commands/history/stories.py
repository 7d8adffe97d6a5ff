"""A story: what several runs show together, and none of them alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["fails-again", "down", "drift", "step", "outlier", "shared-step", "after-change", "all-nodes", "counter"]


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to some nodes.

    Args:
        kind: `fails-again`: fails, recovers and fails; `down`: fails in every run since; `drift`: a measurement changes
            slowly; `step`: it changed at once; `outlier`: it was always worse than that of equal nodes; `shared-step`:
            it changed at once on several nodes; `after-change`: it got worse when a driver or the like changed;
            `all-nodes`: it got worse on all nodes of a model; `counter`: a counter grows.
        nodes: whom it is about.
        quantities: what got worse; empty for failures.
        since: the number of the run that it began in, or for `fails-again` the run of the last failure.
        change: of the first quantity, as a share of its value or in its unit; null for failures.
        message: the story in one sentence.
        forecast: what follows if it continues, where the data carry that; else empty.
    """

    kind: Kind
    nodes: tuple[str, ...]
    quantities: tuple[str, ...]
    since: int
    change: float | None
    message: str
    forecast: str = ""


def overlap(first: Iterable[object], second: Iterable[object]) -> float:
    """The share of two sets that is common to both."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one | other else 1.0


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))
