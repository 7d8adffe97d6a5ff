"""The order in which one stage of a pipeline processes its microbatches, and the values that it must hold, bit by bit.

GPipe: all forward passes, then all backward passes (arXiv 1811.06965). 1F1B: after as many forward passes as there are
later stages, each further forward pass is followed by a backward pass, so that no stage holds more microbatches than
there are stages from it to the end (PipeDream, arXiv 1806.03377; with a flush after each step in arXiv 2104.04473).

A microbatch is two rows, `a` and `b`. A stage with weights `w` is linear in them: `a` is unchanged, `b` becomes `b + w
* a`. Backwards `gb` is unchanged, `ga` becomes `ga + w * gb`, and the gradient of `w` is `a * gb`. So activations and
gradients depend on the weights of every stage they went through, but grow only like a sum: all values are
integers below 2^24 times a power of two (for up to `MAX_STAGES` stages), and 32-bit floats hold them exactly.

The gradient of each microbatch occupies a separate digit in base 4, as in `oracle`, so that a sum shows which one is
missing or was added twice; and the weights of each version differ in the digits of the microbatches that made it, so
that a backward pass that did not use the weights of its forward pass shows which ones it used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from reference_trainer.common import arrays, oracle

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

    send: Slot | None = None
    send_to: int | None = None
    receive: Slot | None = None
    receive_from: int | None = None


def gpipe(stage: int, stages: int, microbatches: int) -> list[Slot]:
    """All forward passes, then all backward passes, in the same order on every stage."""
    forward = [Slot(FORWARD, m) for m in range(microbatches)]
    return forward + [Slot(BACKWARD, m) for m in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Slot]:
    """`stages - 1 - stage` forward passes to fill the pipeline, then one forward and one backward in turn."""
    ahead = min(stages - 1 - stage, microbatches)
    found = [Slot(FORWARD, m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        found += [Slot(FORWARD, ahead + m), Slot(BACKWARD, m)]
    return found + [Slot(BACKWARD, m) for m in range(microbatches - ahead, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int], list[Slot]]] = {GPIPE: gpipe, ONE_F_ONE_B: one_f_one_b}


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage of a balanced pipeline waits (arXiv 2104.04473, section 2.2)."""
    return (stages - 1) / (microbatches + stages - 1)


def exchanges(slots: list[Slot], stage: int, stages: int) -> list[Exchange]:
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


def _consumer(slot: Slot, stage: int, stages: int) -> int | None:
    """The stage that uses the result of a slot."""
    other = stage + 1 if slot.kind == FORWARD else stage - 1
    return other if 0 <= other < stages else None


def _producer(slot: Slot, stage: int, stages: int) -> int | None:
    """The stage whose result a slot needs."""
    other = stage - 1 if slot.kind == FORWARD else stage + 1
    return other if 0 <= other < stages else None


def versions(slots: list[Slot], *, flush: bool) -> list[int]:
    """By microbatch, the version of the weights (number of updates) of its forward pass, which its backward pass must
    use as well.

    Without a flush (PipeDream) the weights are updated after each backward pass, otherwise after all of them.
    """
    updates: int = 0
    found: dict[int, int] = {}
    for slot in slots:
        if slot.kind == FORWARD:
            found[slot.microbatch] = 0 if flush else updates
        else:
            updates += 1
    return [found[m] for m in sorted(found)]


#: Digits of one float (see `oracle.WINDOW`).
MAX_MICROBATCHES = oracle.WINDOW
#: 64 stages x 3 updates by all microbatches x 21845 quanta < 2^24.
MAX_STAGES, MAX_UPDATES = 64, 3
#: Elements of each of the two rows.
ELEMENTS = 1000
#: Weights increase by this times the gradient: a power of two; they increase so that none comes near zero.
LEARNING_RATE = 0.125
_SALT = 9000
_START = 5.0


@dataclass(frozen=True)
class StageFault:
    """A wrong value of one stage.

    Args:
        what: `received activations`, `activations`, `received gradients`, `gradients`, `weight gradients`, `weights`.
        microbatch: -1 if it concerns all of them.
        sender: the rank that sent it; -1 if it was computed here.
        index: first wrong element (row-major); `wrong` of `elements` are wrong. `expected` and `got` are its `repr`s.
    """

    what: str
    stage: int
    microbatch: int
    step: str
    sender: int
    elements: int
    wrong: int
    index: int
    expected: str
    got: str
    explanation: str


class ExpectedValues:
    """The values of one step of a pipeline that each stage must have for each microbatch.

    Args:
        updates: the number of updates by all microbatches before this step.
        replica: the replica of the pipeline: each has values of its own, so that crossed ones are noticed.
        flush: the weights are updated once, after all backward passes; else after each (PipeDream).
    """

    def __init__(
        self,
        schedule: str,
        stages: int,
        microbatches: int,
        device: Any,
        *,
        updates: int = 0,
        flush: bool = True,
        replica: int = 0,
    ) -> None:
        self.stages, self.microbatches = stages, microbatches
        index, salt = arrays.numbers(ELEMENTS, device), _SALT + replica
        limit = mantissa_limit(stages, microbatches)
        #: A power of two times a number with as many bits as leave the products exact.
        self._unit = oracle.units_at(index, salt) * oracle.mantissas_at(index, salt, limit)
        self._before = updates
        slots = [SCHEDULES[schedule](stage, stages, microbatches) for stage in range(stages)]
        #: By stage and microbatch: updates within this step that the weights of the forward pass had.
        self.version = [versions(each, flush=flush) for each in slots]

    def weights(self, stage: int, version: int) -> Any:
        """float32[ELEMENTS]: the weights of a stage after updates by `version` microbatches of this step."""
        return self._unit * self._quanta(stage, version)

    def activations(self, stage: int, microbatch: int) -> Any:
        """float32[2, ELEMENTS]: the input of `stage`; for stage number `stages`, the output of the last one."""
        quanta = microbatch + 1.0
        for before in range(stage):
            quanta += self._quanta(before, self.version[before][microbatch])
        return arrays.stack([self._unit, self._unit * self._unit * quanta])

    def gradients(self, stage: int, microbatch: int, version: int | None = None) -> Any:
        """float32[2, ELEMENTS]: the backward output of `stage`; for stage number `stages`, the start of the backward
        passes.

        `version` overrides the correct version of this stage's own weights.
        """
        quanta = microbatch + 1.0
        for behind in range(stage, self.stages):
            own = behind == stage and version is not None
            quanta += self._quanta(behind, version if own and version is not None else self.version[behind][microbatch])
        digit = oracle.digit(microbatch)
        return arrays.stack([self._unit * (quanta * digit), arrays.full(float(digit), self._unit)])

    def judge_weight_gradients(self, stage: int, rank: int, got: Any, step: str) -> StageFault | None:
        """Check the sum over all microbatches; shows which one is missing or doubled."""
        expected = self._unit * float(oracle.total(0, self.microbatches))
        found = oracle.compare("", rank, got, expected, unit=self._unit, world_size=self.microbatches)
        if found is None:
            return None
        explanation = found.explanation.replace("rank", "microbatch")
        return _fault("weight gradients", stage, -1, step, -1, found, explanation)

    def judge(self, slot: Slot, stage: int, got: Any, step: str, *, sender: int = -1) -> StageFault | None:
        """Check the input of a slot (from rank `sender`), or its output."""
        received = sender >= 0
        forward = slot.kind == FORWARD
        m = slot.microbatch
        at = stage + (0 if received == forward else 1)
        right = self.activations(at, m) if forward else self.gradients(at, m)
        found = oracle.compare("", 0, got, right)
        if found is None:
            return None
        kind = "activations" if forward else "gradients"
        explanation = self._other(slot, at, got) if received else self._stale(slot, stage, got)
        return _fault(
            f"received {kind}" if received else kind, stage, m, step, sender, found, explanation or found.explanation
        )

    def _other(self, slot: Slot, at: int, got: Any) -> str:
        """Whether another microbatch, or nothing, was received instead of this one."""
        if not bool((got != 0).any()):
            return f"no data of microbatch {slot.microbatch} arrived: all values are zero"
        for m in range(self.microbatches):
            other = self.activations(at, m) if slot.kind == FORWARD else self.gradients(at, m)
            if arrays.wrong(got, other)[0] == 0:
                return f"these are the values of microbatch {m}: microbatch {slot.microbatch} is lost or out of order"
        return ""

    def _stale(self, slot: Slot, stage: int, got: Any) -> str:
        """Whether a backward pass used different weights from its forward pass."""
        if slot.kind == FORWARD:
            return ""
        own = self.version[stage][slot.microbatch]
        for version in range(self.microbatches + 1):
            if version != own and arrays.wrong(got, self.gradients(stage, slot.microbatch, version))[0] == 0:
                return (
                    f"the backward pass used the weights after {version} updates, the forward pass those after {own}: "
                    "they were not stashed"
                )
        return ""

    def _quanta(self, stage: int, version: int) -> float:
        whole = oracle.total(0, self.microbatches) * self._before
        return _START + stage + LEARNING_RATE * (whole + oracle.total(0, version))


def mantissa_limit(stages: int, microbatches: int) -> int:
    """The largest number in a unit: its square times the most quanta of an activation stays below 2^24."""
    weights = (_START + stages) / LEARNING_RATE + (MAX_UPDATES + 1) * oracle.total(0, microbatches)
    most = stages * weights + (microbatches + 1) / LEARNING_RATE
    return max(1, int((2.0**24 / most) ** 0.5))


def _fault(
    what: str, stage: int, microbatch: int, step: str, sender: int, found: oracle.Mismatch, explanation: str
) -> StageFault:
    return StageFault(
        what,
        stage,
        microbatch,
        step,
        sender,
        found.elements,
        found.wrong,
        found.index,
        found.expected,
        found.got,
        explanation,
    )


def judge_weights(expected: ExpectedValues, stage: int, rank: int, got: Any, step: str) -> StageFault | None:
    """Check the weights of a stage after all microbatches of a step."""
    found = oracle.compare("", rank, got, expected.weights(stage, expected.microbatches))
    return None if found is None else _fault("weights", stage, -1, step, -1, found, found.explanation)
