"""One rank as a stage of a pipeline: passes exact activations forwards and gradients backwards, and measures each pass.

Ranks are laid out as in Megatron-LM: stage s of replica r is rank s x (ranks / stages) + r. Two steps with a flush in
the requested schedule, then one without a flush, in which each microbatch's backward pass needs the weights of its
forward pass. Wrong values are replaced with correct ones where they are found, so that only the stage or path that
caused them is blamed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from reference_trainer.collective import bandwidth as pace
from reference_trainer.common import progress as starvation
from reference_trainer.common.progress import Progress
from reference_trainer.pipeline import schedule as expected_values
from reference_trainer.pipeline import schedule as schedules
from reference_trainer.pipeline.schedule import BACKWARD, FORWARD, Exchange, ExpectedValues, Slot, StageFault

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
    asked = params["pipeline"]
    world_size, stages = int(params["world_size"]), int(asked["stages"])
    microbatches, schedule = int(asked["microbatches"]), str(asked["schedule"])
    note = pipeline_problem(world_size, stages, microbatches, schedule)
    if note:
        return PipelineReport(stages, microbatches, schedule, note=note)
    stage = _Stage(torch, dist, progress, device, world_size, stages, params.get("injected_fault", {}))
    waited = starvation.waited_s()
    for step in range(STEPS):
        collectives.barrier(f"start of pipeline step {step}")
        stage.step(f"step {step}", schedule, microbatches, updates=step, flush=True)
    timed = stage.timed
    share = _share(waited, starvation.waited_s(), sum(sum(each) for kind in timed.values() for each in kind))
    collectives.barrier("start of the pipeline step without a flush")
    stage.step("step without a flush", schedules.ONE_F_ONE_B, microbatches, updates=STEPS, flush=False)
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
        round(schedules.bubble(stages, microbatches), 3),
    )


def pipeline_problem(world_size: int, stages: int, microbatches: int, schedule: str) -> str:
    """Why such a pipeline is impossible; empty if it is possible."""
    if schedule not in schedules.SCHEDULES:
        return "unknown schedule {!r}; expected one of {}".format(schedule, " and ".join(sorted(schedules.SCHEDULES)))
    if not 2 <= stages <= expected_values.MAX_STAGES:
        return f"{stages} stages; 2 to {expected_values.MAX_STAGES} are supported"
    if world_size % stages:
        return f"{world_size} ranks cannot be divided into {stages} equal stages"
    if not 1 <= microbatches <= expected_values.MAX_MICROBATCHES:
        return f"{microbatches} microbatches; 1 to {expected_values.MAX_MICROBATCHES} are supported"
    return ""


def _share(before: float | None, after: float | None, computed_s: float) -> float | None:
    """The share of working time in which other processes used the CPU."""
    if before is None or after is None or computed_s <= 0:
        return None
    return round(max(0.0, after - before) / (computed_s + max(0.0, after - before)), 3)


def _combine_replicas(
    torch: Any, collectives: Any, stage: _Stage, microbatch_s: float, device: Any
) -> tuple[list[float], float, float]:
    """For each stage the slowest replica's time per microbatch; the mean working time of stages; the longest step."""
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
        slots = schedules.SCHEDULES[schedule](self.number, self.stages, microbatches)
        moves = schedules.exchanges(slots, self.number, self.stages)
        #: Input, weights and output of each microbatch between its passes: weights that are updated meanwhile are kept.
        held: dict[int, tuple[Any, Any, Any]] = {}
        gradient = self._torch.zeros_like(self._weights)
        timed: dict[str, list[float]] = {FORWARD: [], BACKWARD: []}
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        began, self._idle_s = time.perf_counter(), 0.0
        result = None
        for slot, move in zip(slots, moves):
            came = self._exchange(move, result, name)
            if slot == Slot(FORWARD, self._fault.get("stall_microbatch", -1)):
                time.sleep(3600.0)
            at = self._now()
            if slot.kind == FORWARD:
                value = self._checked_input(expected, slot, move, came, name, expected.activations)
                kept = (value.requires_grad_(), self._weights.clone().requires_grad_())
                made = _forward(self._torch, *kept)
                held[slot.microbatch] = (*kept, made)
                result = self._checked_output(expected, slot, made.detach(), name)
            else:
                value = self._checked_input(expected, slot, move, came, name, expected.gradients)
                inputs, own = self._backward(held.pop(slot.microbatch), value)
                result = self._checked_output(expected, slot, inputs, name)
                gradient += own
                if not flush:
                    self._weights = self._weights + expected_values.LEARNING_RATE * own
            self._work(slot, int(self._fault.get("slow_stage", 1)))
            timed[slot.kind].append(self._now() - at)
            self._progress.report_progress()
        self._exchange(moves[-1], result, name)
        took = time.perf_counter() - began
        self._torch.set_num_threads(threads)
        if flush:
            self._weights = self._weights + expected_values.LEARNING_RATE * gradient
            self.step_s, self.busy_s = took, took - self._idle_s
            for kind, each in timed.items():
                self.timed[kind].append(each)
        rank, number = self._progress.rank, self.number
        self._note(expected.judge_weight_gradients(number, rank, gradient, name))
        self._note(expected_values.judge_weights(expected, number, rank, self._weights, name))
        self._weights = expected.weights(number, microbatches)

    def _now(self) -> float:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _backward(self, held: tuple[Any, Any, Any], gradient: Any) -> tuple[Any, Any]:
        """The gradients of the input and of the weights, as autograd computes them."""
        inputs, weights, made = held
        if self._fault.get("stale_weights"):
            weights = self._weights.clone().requires_grad_()
            made = _forward(self._torch, inputs, weights)
        made.backward(gradient)
        return inputs.grad, weights.grad

    def _checked_input(
        self,
        expected: ExpectedValues,
        slot: Slot,
        move: Exchange,
        received: Any,
        step: str,
        right: Callable[[int, int], Any],
    ) -> Any:
        """The input of a slot: the received one, or the correct one if that is wrong or nothing was received."""
        at = self.number if slot.kind == FORWARD else self.number + 1
        if move.receive_from is None:
            return right(at, slot.microbatch)
        found = expected.judge(slot, self.number, received, step, sender=self._rank_of(move.receive_from))
        self._note(found)
        return received if found is None else right(at, slot.microbatch)

    def _checked_output(self, expected: ExpectedValues, slot: Slot, computed: Any, step: str) -> Any:
        """The output of a slot, or the correct one if it is wrong."""
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
        """Send and receive at the same time; returns the received tensor, None if none was expected."""
        dist = self._dist
        operations, peers, words = [], [], []
        came, began = None, time.perf_counter()
        if move.receive is not None and move.receive_from is not None:
            source = self._rank_of(move.receive_from)
            came = self._torch.zeros(2, expected_values.ELEMENTS, device=self._device)
            operations.append(dist.P2POp(dist.irecv, came, source))
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
        self._idle_s += time.perf_counter() - began
        return came

    def _await(self, works: Sequence[Any], peers: Sequence[int]) -> None:
        """Wait for each request; stop waiting for ranks whose request has finished."""
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
    """The stage itself: see `expected_values`."""
    a, b = inputs[0], inputs[1]
    return torch.stack([a, b + weights * a])


def _work(torch: Any, device: Any) -> Callable[[Slot, int], None]:
    """Work that takes as long as a small layer: computing only the known values would measure overhead."""
    size = CPU_SIZE if device.type == "cpu" else pace.GPU_SIZE
    matrix = torch.randn(size, size, device=device)

    def work(slot: Slot, times: int) -> None:
        for _ in range(PRODUCTS * times * (1 if slot.kind == FORWARD else 2)):
            torch.matmul(matrix, matrix)

    return work
