"""One entry of the vocabulary of claims."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that a source may state. `kind` is the Python type of a known value.

    `agrees` marks the quantities for which the one disagreement rule compares what sets them with what requires them.
    """

    name: str
    kind: type
    meaning: str
    unit: str = ""
    agrees: bool = False
