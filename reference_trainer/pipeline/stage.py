"""One rank as a stage of a pipeline: passes exact activations forwards and gradients backwards, and measures each pass.

Ranks are laid out as in Megatron-LM: stage s of replica r is rank s x (ranks / stages) + r. Two steps with a flush in
the requested schedule, then one without a flush, in which each microbatch's backward pass needs the weights of its
forward pass. Wrong values are replaced with correct ones where they are found, so that only the stage or link that
caused them is blamed.

GPipe: all forward passes, then all backward passes (arXiv 1811.06965). 1F1B: after as many forward passes as there are
later stages, each further forward pass is followed by a backward pass, so that no stage holds more microbatches than
there are stages from it to the end (PipeDream, arXiv 1806.03377; with a flush after each step in arXiv 2104.04473).

A microbatch is two rows, `a` and `b`. A stage with weights `w` is linear in them: `a` is unchanged, `b` becomes `b + w
* a`. Backwards `gb` is unchanged, `ga` becomes `ga + w * gb`, and the gradient of `w` is `a * gb`. So activations and
gradients depend on the weights of every stage they went through, but grow only like a sum: all values are integers
below 2^24 times a power of two (for up to `MAX_STAGES` stages), and 32-bit floats hold them exactly.

The gradient of each microbatch occupies a separate digit in base 4, as in `oracle`, so that a sum shows which one is
missing or was added twice; and the weights of each version differ in the digits of the microbatches that made it, so
that a backward pass with other weights than its forward pass shows which weights it used.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from reference_trainer.collective import bandwidth as pace
from reference_trainer.common import arrays, oracle
from reference_trainer.common import progress as starvation
from reference_trainer.common.progress import Progress

#: Steps with a flush; the first opens connections, so that the times of the last one count.
STEPS = 2
#: Matrix products in a forward pass; a backward pass takes twice as many, as in training. A pass of a few milliseconds
#: is long compared with a message, so that the bubble can come near the formula.
PRODUCTS, CPU_SIZE = 8, 256


@dataclass(frozen=True)
class PipelineReport:
    """The results of one stage. Times are seconds.

    `forward_s` and `backward_s` are medians over the microbatches, for the faster of the steps with a flush;
    `step_s` is the last of these, of the slowest stage. `stage_s` holds by stage the compute time of one microbatch,
    forward and backward, for the slowest replica; `imbalance` is its maximum over its mean. `bubble` is the share of
    the step in which the stages wait on average (comparing values counts as work), `formula` its value if all stages
    are equally fast and messages take no time. `waited` is the share of the computing time in which other processes
    used the CPU; None if the kernel does not report it. `note` is why there was no pipeline.
    """

    stages: int = 0
    microbatches: int = 0
    schedule: str = ""
    stage: int = 0
    compared: int = 0
    faults: list[StageFault] = field(default_factory=list)
    forward_s: float = 0.0
    backward_s: float = 0.0
    step_s: float = 0.0
    waited: float | None = None
    stage_s: list[float] = field(default_factory=list)
    imbalance: float = 0.0
    bubble: float = 0.0
    formula: float = 0.0
    note: str = ""


def run(
    torch: Any, dist: Any, collectives: Any, params: dict[str, Any], progress: Progress, device: Any
) -> PipelineReport:
    """Run as one stage, together with all other ranks.

    Args:
        params: `world_size`, and under `pipeline`: `stages`, `microbatches`, `schedule` (`gpipe` or `1f1b`).
            `injected_fault` may hold `stale_weights` (the rank keeps no weights for backward passes), `lose_microbatch`
            (its number: the rank sends zeros in its place), `slow_stage` (a factor of its work) and `stall_microbatch`
            (its number: the rank stops before its forward pass).
    """
    options = params["pipeline"]
    world_size, stages = int(params["world_size"]), int(options["stages"])
    microbatches, schedule = int(options["microbatches"]), str(options["schedule"])
    note = pipeline_problem(world_size, stages, microbatches, schedule)
    if note:
        return PipelineReport(stages, microbatches, schedule, note=note)
    stage = _Stage(torch, dist, progress, device, world_size, stages, params.get("injected_fault", {}))
    waited_s = starvation.waited_s()
    for step in range(STEPS):
        collectives.barrier(f"start of pipeline step {step}")
        stage.step(f"step {step}", schedule, microbatches, updates=step, flush=True)
    timed = stage.timed
    share = _share(waited_s, starvation.waited_s(), sum(sum(each) for kind in timed.values() for each in kind))
    collectives.barrier("start of the pipeline step without a flush")
    stage.step("step without a flush", ONE_F_ONE_B, microbatches, updates=STEPS, flush=False)
    forward_s, backward_s = (min(statistics.median(each) for each in timed[kind]) for kind in (FORWARD, BACKWARD))
    stage_s, busy_s, step_s = _combine_replicas(torch, collectives, stage, forward_s + backward_s, device)
    mean = sum(stage_s) / stages
    return PipelineReport(
        stages,
        microbatches,
        schedule,
        stage.number,
        stage.compared,
        stage.faults,
        round(forward_s, 6),
        round(backward_s, 6),
        round(step_s, 6),
        share,
        [round(each, 6) for each in stage_s],
        round(max(stage_s) / mean, 3),
        round(max(0.0, 1.0 - busy_s / step_s), 3),
        round(bubble(stages, microbatches), 3),
    )


def pipeline_problem(world_size: int, stages: int, microbatches: int, schedule: str) -> str:
    """Return why such a pipeline is impossible; empty if it is possible."""
    if schedule not in SCHEDULES:
        return "unknown schedule {!r}; expected one of {}".format(schedule, " and ".join(sorted(SCHEDULES)))
    if not 2 <= stages <= MAX_STAGES:
        return f"{stages} stages; 2 to {MAX_STAGES} are supported"
    if world_size % stages:
        return f"{world_size} ranks cannot be divided into {stages} equal stages"
    if not 1 <= microbatches <= MAX_MICROBATCHES:
        return f"{microbatches} microbatches; 1 to {MAX_MICROBATCHES} are supported"
    return ""


def _share(before: float | None, after: float | None, computed_s: float) -> float | None:
    """Return the share of working time in which other processes used the CPU."""
    if before is None or after is None or computed_s <= 0:
        return None
    return round(max(0.0, after - before) / (computed_s + max(0.0, after - before)), 3)


def _combine_replicas(
    torch: Any, collectives: Any, stage: _Stage, microbatch_s: float, device: Any
) -> tuple[list[float], float, float]:
    """Return the slowest replica's time per microbatch by stage, the mean working times, and the longest step."""
    times = torch.zeros(3, stage.stages, device=device)
    times[:, stage.number] = torch.tensor([microbatch_s, stage.busy_s, stage.step_s])
    collectives.maximum(times, "times of the pipeline's stages")
    stage_s, busy_s, step_s = times.tolist()
    return stage_s, sum(busy_s) / stage.stages, max(step_s)


class _Stage:
    """The weights of one stage, its microbatches in progress, and the faults found."""

    def __init__(
        self,
        torch: Any,
        dist: Any,
        progress: Progress,
        device: Any,
        world_size: int,
        stages: int,
        fault: dict[str, Any],
    ) -> None:
        self.stages = stages
        self._width = world_size // stages
        self.number = progress.rank // self._width
        self._torch, self._dist, self._progress, self._device, self._fault = torch, dist, progress, device, fault
        self.faults: list[StageFault] = []
        self.compared = 0
        #: The duration of the last step with a flush, and its part without exchanges.
        self.step_s = self.busy_s = 0.0
        self._idle_s = 0.0
        #: Seconds of each pass, by kind and by step with a flush.
        self.timed: dict[str, list[list[float]]] = {FORWARD: [], BACKWARD: []}
        self._weights: Any = None
        self._work = _work(torch, device)

    def step(self, name: str, schedule: str, microbatches: int, *, updates: int, flush: bool) -> None:
        """Process all microbatches once, forwards and backwards, and update the weights."""
        expected = ExpectedValues(
            schedule,
            self.stages,
            microbatches,
            self._device,
            updates=updates,
            flush=flush,
            replica=self._progress.rank % self._width,
        )
        if self._weights is None:
            self._weights = expected.weights(self.number, 0)
        slots = SCHEDULES[schedule](self.number, self.stages, microbatches)
        moves = exchanges(slots, self.number, self.stages)
        #: Input, weights and output of each microbatch between its passes: weights that are updated meanwhile are kept.
        saved: dict[int, tuple[Any, Any, Any]] = {}
        gradient = self._torch.zeros_like(self._weights)
        timed: dict[str, list[float]] = {FORWARD: [], BACKWARD: []}
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        began, self._idle_s = time.perf_counter(), 0.0
        result = None
        for slot, move in zip(slots, moves):
            received = self._exchange(move, result, name)
            if slot == Slot(FORWARD, self._fault.get("stall_microbatch", -1)):
                time.sleep(3600.0)
            at = self._now()
            if slot.kind == FORWARD:
                value = self._require_input(expected, slot, move, received, name, expected.activations)
                kept = (value.requires_grad_(), self._weights.clone().requires_grad_())
                output = _forward(self._torch, *kept)
                saved[slot.microbatch] = (*kept, output)
                result = self._require_output(expected, slot, output.detach(), name)
            else:
                value = self._require_input(expected, slot, move, received, name, expected.gradients)
                inputs, own = self._backward(saved.pop(slot.microbatch), value)
                result = self._require_output(expected, slot, inputs, name)
                gradient += own
                if not flush:
                    self._weights = self._weights + LEARNING_RATE * own
            self._work(slot, int(self._fault.get("slow_stage", 1)))
            timed[slot.kind].append(self._now() - at)
            self._progress.report_progress()
        self._exchange(moves[-1], result, name)
        took = time.perf_counter() - began
        self._torch.set_num_threads(threads)
        if flush:
            self._weights = self._weights + LEARNING_RATE * gradient
            self.step_s, self.busy_s = took, took - self._idle_s
            for kind, each in timed.items():
                self.timed[kind].append(each)
        rank, number = self._progress.rank, self.number
        self._note(expected.judge_weight_gradients(number, rank, gradient, name))
        self._note(judge_weights(expected, number, rank, self._weights, name))
        self._weights = expected.weights(number, microbatches)

    def _now(self) -> float:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _backward(self, held: tuple[Any, Any, Any], gradient: Any) -> tuple[Any, Any]:
        """Return the gradients of the input and of the weights, as autograd computes them."""
        inputs, weights, output = held
        if self._fault.get("stale_weights"):
            weights = self._weights.clone().requires_grad_()
            output = _forward(self._torch, inputs, weights)
        output.backward(gradient)
        return inputs.grad, weights.grad

    def _require_input(
        self,
        expected: ExpectedValues,
        slot: Slot,
        move: Exchange,
        received: Any,
        step: str,
        right: Callable[[int, int], Any],
    ) -> Any:
        """Return the input of a slot: the received one, or the correct one if the received one is wrong or missing."""
        at = self.number if slot.kind == FORWARD else self.number + 1
        if move.receive_from is None:
            return right(at, slot.microbatch)
        found = expected.judge(slot, self.number, received, step, sender=self._rank_of(move.receive_from))
        self._note(found)
        return received if found is None else right(at, slot.microbatch)

    def _require_output(self, expected: ExpectedValues, slot: Slot, computed: Any, step: str) -> Any:
        """Return the output of a slot: the computed one, or the correct one if the computed one is wrong."""
        found = expected.judge(slot, self.number, computed, step)
        self._note(found)
        if found is None:
            return computed
        if slot.kind == FORWARD:
            return expected.activations(self.number + 1, slot.microbatch)
        return expected.gradients(self.number, slot.microbatch)

    def _note(self, fault: StageFault | None) -> None:
        self.compared += 1
        if fault is not None:
            self.faults.append(fault)

    def _rank_of(self, stage: int) -> int:
        return self._progress.rank + (stage - self.number) * self._width

    def _exchange(self, move: Exchange, result: Any, step: str) -> Any:
        """Send and receive at the same time; return the received tensor, or None if no tensor was expected."""
        dist = self._dist
        operations, peers, words = [], [], []
        received, started_at = None, time.perf_counter()
        if move.receive is not None and move.receive_from is not None:
            source = self._rank_of(move.receive_from)
            received = self._torch.zeros(2, ELEMENTS, device=self._device)
            operations.append(dist.P2POp(dist.irecv, received, source))
            peers.append(source)
            words.append("receive %s of microbatch %d from rank %d" % (*_named(move.receive), source))
        if move.send is not None and move.send_to is not None:
            target = self._rank_of(move.send_to)
            lost = self._fault.get("lose_microbatch") == move.send.microbatch and move.send.kind == FORWARD
            sent = self._torch.zeros_like(result) if lost else result.contiguous()
            operations.append(dist.P2POp(dist.isend, sent, target))
            peers.append(target)
            words.append("send %s of microbatch %d to rank %d" % (*_named(move.send), target))
        if not operations:
            return None
        self._progress.entering("pipeline {}: {}".format(step, ", ".join(words)), waiting_for=peers, brief=True)
        self._await(dist.batch_isend_irecv(operations), peers)
        self._progress.left()
        self._idle_s += time.perf_counter() - started_at
        return received

    def _await(self, works: Sequence[Any], peers: Sequence[int]) -> None:
        """Wait for each request, and report for which ranks this rank still waits."""
        for index, work in enumerate(works):
            work.wait()
            left = [peer for peer, other in zip(peers[index + 1 :], works[index + 1 :]) if not other.is_completed()]
            if left:
                self._progress.waits_for(left)
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def _named(slot: Slot) -> tuple[str, int]:
    return ("activations" if slot.kind == FORWARD else "gradients"), slot.microbatch


def _forward(torch: Any, inputs: Any, weights: Any) -> Any:
    """Compute the output of the stage: see `expected_values`."""
    a, b = inputs[0], inputs[1]
    return torch.stack([a, b + weights * a])


def _work(torch: Any, device: Any) -> Callable[[Slot, int], None]:
    """Return work that takes as long as a small layer: computing only the known values would measure overhead."""
    size = CPU_SIZE if device.type == "cpu" else pace.GPU_SIZE
    matrix = torch.randn(size, size, device=device)

    def work(slot: Slot, times: int) -> None:
        for _ in range(PRODUCTS * times * (1 if slot.kind == FORWARD else 2)):
            torch.matmul(matrix, matrix)

    return work


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
    """Return the slots of a stage: all forward passes, then all backward passes, in the same order on every stage."""
    forward = [Slot(FORWARD, m) for m in range(microbatches)]
    return forward + [Slot(BACKWARD, m) for m in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Slot]:
    """Return a stage's slots: `stages - 1 - stage` forward passes, then one forward and one backward in turn."""
    ahead = min(stages - 1 - stage, microbatches)
    found = [Slot(FORWARD, m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        found += [Slot(FORWARD, ahead + m), Slot(BACKWARD, m)]
    return found + [Slot(BACKWARD, m) for m in range(microbatches - ahead, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int], list[Slot]]] = {GPIPE: gpipe, ONE_F_ONE_B: one_f_one_b}


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a stage of a balanced pipeline waits (arXiv 2104.04473, section 2.2)."""
    return (stages - 1) / (microbatches + stages - 1)


def exchanges(slots: list[Slot], stage: int, stages: int) -> list[Exchange]:
    """Return the exchanges before each slot and after the last slot: one more than there are slots.

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
    """Return the stage that uses the result of a slot."""
    other = stage + 1 if slot.kind == FORWARD else stage - 1
    return other if 0 <= other < stages else None


def _producer(slot: Slot, stage: int, stages: int) -> int | None:
    """Return the stage whose result a slot needs."""
    other = stage - 1 if slot.kind == FORWARD else stage + 1
    return other if 0 <= other < stages else None


def versions(slots: list[Slot], *, flush: bool) -> list[int]:
    """Return, by microbatch, the number of weight updates before its forward pass, which its backward pass must use."""
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
        replica: the replica of the pipeline: each has its own values, so that crossed ones are noticed.
        flush: whether the weights are updated once, after all backward passes; otherwise after each (PipeDream).
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
        """Return float32[ELEMENTS]: the weights of a stage after updates by `version` microbatches of this step."""
        return self._unit * self._quanta(stage, version)

    def activations(self, stage: int, microbatch: int) -> Any:
        """Return float32[2, ELEMENTS]: the input of `stage`; for stage number `stages`, the output of the last one."""
        quanta = microbatch + 1.0
        for before in range(stage):
            quanta += self._quanta(before, self.version[before][microbatch])
        return arrays.stack([self._unit, self._unit * self._unit * quanta])

    def gradients(self, stage: int, microbatch: int, version: int | None = None) -> Any:
        """Return float32[2, ELEMENTS]: the backward output of `stage` (`stages`: its start), for weights `version`."""
        quanta = microbatch + 1.0
        for behind in range(stage, self.stages):
            own = behind == stage and version is not None
            quanta += self._quanta(behind, version if own and version is not None else self.version[behind][microbatch])
        digit = oracle.digit(microbatch)
        return arrays.stack([self._unit * (quanta * digit), arrays.full(float(digit), self._unit)])

    def judge_weight_gradients(self, stage: int, rank: int, got: Any, step: str) -> StageFault | None:
        """Check the sum of all microbatches' gradients; a wrong sum shows which one is missing or doubled."""
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
        """Return a message if another microbatch, or nothing, was received instead of this one."""
        if not bool((got != 0).any()):
            return f"no data of microbatch {slot.microbatch} arrived: all values are zero"
        for m in range(self.microbatches):
            other = self.activations(at, m) if slot.kind == FORWARD else self.gradients(at, m)
            if arrays.count_wrong(got, other)[0] == 0:
                return f"these are the values of microbatch {m}: microbatch {slot.microbatch} is lost or out of order"
        return ""

    def _stale(self, slot: Slot, stage: int, got: Any) -> str:
        """Return a message if a backward pass used different weights from its forward pass."""
        if slot.kind == FORWARD:
            return ""
        own = self.version[stage][slot.microbatch]
        for version in range(self.microbatches + 1):
            if version != own and arrays.count_wrong(got, self.gradients(stage, slot.microbatch, version))[0] == 0:
                return (
                    f"the backward pass used the weights after {version} updates, but the forward pass those after "
                    f"{own}: the weights were not stashed"
                )
        return ""

    def _quanta(self, stage: int, version: int) -> float:
        whole = oracle.total(0, self.microbatches) * self._before
        return _START + stage + LEARNING_RATE * (whole + oracle.total(0, version))


def mantissa_limit(stages: int, microbatches: int) -> int:
    """Return the largest number in a unit: its square times the most quanta of an activation stays below 2^24."""
    weights = (_START + stages) / LEARNING_RATE + (MAX_UPDATES + 1) * oracle.total(0, microbatches)
    most = stages * weights + (microbatches + 1) / LEARNING_RATE
    return max(1, int((2.0**24 / most) ** 0.5))


def _fault(
    what: str, stage: int, microbatch: int, step: str, sender: int, mismatch: oracle.Mismatch, explanation: str
) -> StageFault:
    return StageFault(
        what,
        stage,
        microbatch,
        step,
        sender,
        mismatch.elements,
        mismatch.wrong,
        mismatch.index,
        mismatch.expected,
        mismatch.got,
        explanation,
    )


def judge_weights(expected: ExpectedValues, stage: int, rank: int, got: Any, step: str) -> StageFault | None:
    """Check the weights of a stage after all microbatches of a step."""
    found = oracle.compare("", rank, got, expected.weights(stage, expected.microbatches))
    return None if found is None else _fault("weights", stage, -1, step, -1, found, found.explanation)
