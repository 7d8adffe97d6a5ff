"""What a run tells whoever watches it: which stage it is in, how far, and who is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """One change: `done` of `total` pieces of `stage` are there; `waiting_for` names what is awaited, on whom.

    `deadline_s` is how long the stage may still take at the most, where it has one.
    """

    stage: str
    done: int
    total: int
    waiting_for: tuple[str, ...] = ()
    deadline_s: float | None = None
    note: str = ""


class Progress(Protocol):
    """Whoever watches. Called from the run's own thread; must return at once."""

    def __call__(self, step: Step) -> None:
        """Take notice of `step`."""
        ...


def ignore(step: Step) -> None:
    """The watcher that does not."""
