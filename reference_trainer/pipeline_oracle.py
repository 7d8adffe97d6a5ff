"""What every stage of a pipeline must hold and pass on, bit by bit, whatever the schedule and the number of stages.

A microbatch is two rows, `a` and `b`. A stage with weights `w` is linear in them: `a` passes, `b` becomes `b + w * a`.
Backwards `gb` passes, `ga` becomes `ga + w * gb`, and the gradient of `w` is `a * gb`. So activations and gradients
depend on the weights of every stage they went through, and yet grow only as a sum does: all values are integers below
2^24 times a power of two (for up to `MOST_STAGES` stages), and 32-bit floats hold them exactly.

The gradient of each microbatch is a digit of its own in base 4, as in `oracle`, so that a sum tells which one is
missing or was added twice; and the weights of each version differ in the digits of the microbatches that made it, so
that a backward pass with other weights than its forward pass had shows which ones it took.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from preflight.node.record import dataclass
from reference_trainer import arrays, oracle
from reference_trainer.pipeline_schedule import FORWARD, SCHEDULES, Slot, versions

#: Digits of one float (see `oracle.WINDOW`).
MOST_MICROBATCHES = oracle.WINDOW
#: 64 stages x 3 updates by all microbatches x 21845 quanta < 2^24.
MOST_STAGES, MOST_UPDATES = 64, 3
#: Elements of each of the two rows.
ELEMENTS = 1000
#: Weights go up by this times the gradient: a power of two; up, so that none comes near zero.
RATE = 0.125
_SALT = 9000
_START = 5.0


@dataclass(frozen=True)
class Fault:
    """Something of one stage that is not what it must be.

    Args:
        what: `received activations`, `activations`, `received gradients`, `gradients`, `weight gradients`, `weights`.
        microbatch: -1 where it is of all of them.
        sender: the rank that it came from; -1 where it was computed here.
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


class Expected:
    """The values of one step of a pipeline: what each stage must hold for each microbatch.

    Args:
        updates: how often all microbatches together have moved the weights before this step.
        flush: the weights move once, after all backward passes; else after each (PipeDream).
    """

    def __init__(
        self, schedule: str, stages: int, microbatches: int, device: Any, *, updates: int = 0, flush: bool = True
    ) -> None:
        self.stages, self.microbatches = stages, microbatches
        self._unit = oracle.units(ELEMENTS, _SALT, device)
        self._before = updates
        slots = [SCHEDULES[schedule](stage, stages, microbatches) for stage in range(stages)]
        #: By stage and microbatch: updates within this step that the weights of the forward pass had.
        self.version = [versions(each, flush=flush) for each in slots]

    def weights(self, stage: int, version: int) -> Any:
        """float32[ELEMENTS]: the weights of a stage after `version` microbatches of this step moved them."""
        return self._unit * self._quanta(stage, version)

    def activations(self, stage: int, microbatch: int) -> Any:
        """float32[2, ELEMENTS]: what goes into `stage`; into `stages` is what leaves the last one."""
        quanta = microbatch + 1.0
        for before in range(stage):
            quanta += self._quanta(before, self.version[before][microbatch])
        return arrays.stack([self._unit, self._unit * self._unit * quanta])

    def gradients(self, stage: int, microbatch: int, version: Optional[int] = None) -> Any:
        """float32[2, ELEMENTS]: what leaves `stage` backwards; `stages` is where the backward passes begin.

        `version` is another one than must be, of this stage's own weights.
        """
        quanta = microbatch + 1.0
        for behind in range(stage, self.stages):
            own = behind == stage and version is not None
            quanta += self._quanta(behind, version if own and version is not None else self.version[behind][microbatch])
        digit = oracle.digit(microbatch)
        return arrays.stack([self._unit * (quanta * digit), arrays.full(float(digit), self._unit)])

    def judge_weight_gradients(self, stage: int, rank: int, got: Any, step: str) -> Optional[Fault]:
        """The sum over all microbatches; tells which one is missing or doubled."""
        expected = oracle.expected_sum(self.microbatches, ELEMENTS, _SALT, got.device)
        found = oracle.compare("", rank, got, expected, unit=self._unit, world_size=self.microbatches)
        if found is None:
            return None
        explanation = found.explanation.replace("rank", "microbatch")
        return _fault("weight gradients", stage, -1, step, -1, found, explanation)

    def judge(self, slot: Slot, stage: int, got: Any, step: str, *, sender: int = -1) -> Optional[Fault]:
        """What was received for a slot (from rank `sender`), or what the slot made of it."""
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
            "received %s" % kind if received else kind, stage, m, step, sender, found, explanation or found.explanation
        )

    def _other(self, slot: Slot, at: int, got: Any) -> str:
        """Whether another microbatch came in the place of this one, or nothing."""
        if not bool((got != 0).any()):
            return "nothing of microbatch %d arrived: all is zero" % slot.microbatch
        for m in range(self.microbatches):
            other = self.activations(at, m) if slot.kind == FORWARD else self.gradients(at, m)
            if arrays.wrong(got, other)[0] == 0:
                return "these are the values of microbatch %d: microbatch %d is lost or out of order" % (
                    m,
                    slot.microbatch,
                )
        return ""

    def _stale(self, slot: Slot, stage: int, got: Any) -> str:
        """Whether a backward pass used other weights than its forward pass."""
        if slot.kind == FORWARD:
            return ""
        own = self.version[stage][slot.microbatch]
        for version in range(self.microbatches + 1):
            if version != own and arrays.wrong(got, self.gradients(stage, slot.microbatch, version))[0] == 0:
                return (
                    "the backward pass used the weights after %d updates, the forward pass those after %d: "
                    "they were not stashed" % (version, own)
                )
        return ""

    def _quanta(self, stage: int, version: int) -> float:
        whole = oracle.total(0, self.microbatches) * self._before
        return _START + stage + RATE * (whole + oracle.total(0, version))


def _fault(
    what: str, stage: int, microbatch: int, step: str, sender: int, found: oracle.Mismatch, explanation: str
) -> Fault:
    return Fault(
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


def judge_weights(expected: Expected, stage: int, rank: int, got: Any, step: str) -> Optional[Fault]:
    """The weights of a stage after all microbatches of a step."""
    found = oracle.compare("", rank, got, expected.weights(stage, expected.microbatches))
    return None if found is None else _fault("weights", stage, -1, step, -1, found, found.explanation)


def present(faults: Sequence[Optional[Fault]]) -> List[Fault]:
    """Those that are there."""
    return [fault for fault in faults if fault is not None]
