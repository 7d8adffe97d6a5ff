"""The order in which one stage of a pipeline processes its microbatches: pure functions of stage, stages, microbatches.

GPipe: all forward passes, then all backward passes (arXiv 1811.06965). 1F1B: after as many forward passes as there are
later stages, each further forward pass is followed by a backward pass, so that no stage holds more microbatches than
there are stages from it to the end (PipeDream, arXiv 1806.03377; with a flush after each step in arXiv 2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional

FORWARD, BACKWARD = "forward", "backward"
GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"


@dataclass(frozen=True)
class Slot:
    """One piece of work of a stage: the forward or the backward pass of one microbatch."""

    kind: str
    microbatch: int


@dataclass(frozen=True)
class Exchange:
    """The messages that a stage sends and receives at the same time, between two slots.

    A message is named by the slot of the sender: `send` is the slot just finished here, `receive` the neighbour's slot
    that the next one needs. `send_to` and `receive_from` are stages; None if there is no message.
    """

    send: Optional[Slot] = None
    send_to: Optional[int] = None
    receive: Optional[Slot] = None
    receive_from: Optional[int] = None


def gpipe(stage: int, stages: int, microbatches: int) -> List[Slot]:
    """All forward passes, then all backward passes, in the same order on every stage."""
    forward = [Slot(FORWARD, m) for m in range(microbatches)]
    return forward + [Slot(BACKWARD, m) for m in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> List[Slot]:
    """`stages - 1 - stage` forward passes to fill the pipeline, then one forward and one backward in turn."""
    ahead = min(stages - 1 - stage, microbatches)
    found = [Slot(FORWARD, m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        found += [Slot(FORWARD, ahead + m), Slot(BACKWARD, m)]
    return found + [Slot(BACKWARD, m) for m in range(microbatches - ahead, microbatches)]


SCHEDULES: Dict[str, Callable[[int, int, int], List[Slot]]] = {GPIPE: gpipe, ONE_F_ONE_B: one_f_one_b}


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage of a balanced pipeline waits (arXiv 2104.04473, section 2.2)."""
    return (stages - 1) / (microbatches + stages - 1)


def exchanges(slots: List[Slot], stage: int, stages: int) -> List[Exchange]:
    """The exchanges before each slot, and after the last: one more than there are slots.

    Sending the last result and receiving the next input are combined, because two neighbours that send to each other
    at the same time would both wait for the other to receive.
    """
    found = []
    for done, coming in zip([None, *slots], [*slots, None]):
        to = _consumer(done, stage, stages) if done is not None else None
        source = _producer(coming, stage, stages) if coming is not None else None
        found.append(Exchange(done if to is not None else None, to, coming if source is not None else None, source))
    return found


def _consumer(slot: Slot, stage: int, stages: int) -> Optional[int]:
    """The stage that uses the result of a slot."""
    other = stage + 1 if slot.kind == FORWARD else stage - 1
    return other if 0 <= other < stages else None


def _producer(slot: Slot, stage: int, stages: int) -> Optional[int]:
    """The stage whose result a slot needs."""
    other = stage - 1 if slot.kind == FORWARD else stage + 1
    return other if 0 <= other < stages else None


def versions(slots: List[Slot], *, flush: bool) -> List[int]:
    """By microbatch, the version of the weights (number of updates) of its forward pass, which its backward pass must
    use as well.

    Without a flush (PipeDream) the weights are updated after each backward pass, otherwise after all of them.
    """
    updates, found = 0, {}  # type: int, Dict[int, int]
    for slot in slots:
        if slot.kind == FORWARD:
            found[slot.microbatch] = 0 if flush else updates
        else:
            updates += 1
    return [found[m] for m in sorted(found)]
