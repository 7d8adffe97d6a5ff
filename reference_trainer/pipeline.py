"""One rank as a stage of a pipeline: activations forwards, gradients backwards, exact values, and how long each took.

Ranks are laid out as Megatron-LM does it: stage s of replica r is rank s x (ranks / stages) + r. Two steps with a flush
in the schedule that was asked for, then one without a flush, in which each microbatch's backward pass needs the weights
that its forward pass had. Wrong values are replaced by right ones where they are found, so that only the stage that
made them, or the way that they came, is blamed.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from preflight.node.record import dataclass, field
from reference_trainer import pace, pipeline_oracle
from reference_trainer import pipeline_schedule as schedules
from reference_trainer.pipeline_oracle import Expected, Fault
from reference_trainer.pipeline_schedule import BACKWARD, FORWARD, Exchange, Slot
from reference_trainer.progress import Progress

#: Steps with a flush; the first opens connections, so that the last is the one whose times count.
STEPS = 2
#: Products of matrices in a forward pass; a backward pass takes twice as many, as it does in training. A pass of a few
#: milliseconds is long beside a message, so that the bubble can come near the formula.
PRODUCTS, CPU_SIZE = 8, 256


@dataclass(frozen=True)
class PipelineReport:
    """What one stage can say. Times are seconds.

    `forward_s` and `backward_s` are medians over the microbatches, of the better one of the steps with a flush;
    `step_s` is the last of these, of the slowest stage. `stage_s` holds by stage the compute time of one microbatch,
    forward and backward, the slowest replica's; `imbalance` is its maximum over its mean. `bubble` is the share of the
    step in which the stages wait on average (comparing values counts as work), `formula` what it is where all stages
    are equally fast and messages take no time. `waited` is the share of the computing time in which others had the
    processor; None where the kernel does not tell. `note` says why there was no pipeline.
    """

    stages: int = 0
    microbatches: int = 0
    schedule: str = ""
    stage: int = 0
    compared: int = 0
    faults: List[Fault] = field(default_factory=list)
    most_in_flight: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    step_s: float = 0.0
    waited: Optional[float] = None
    stage_s: List[float] = field(default_factory=list)
    imbalance: float = 0.0
    bubble: float = 0.0
    formula: float = 0.0
    note: str = ""


def run(torch: Any, dist: Any, collectives: Any, params: Dict[str, Any], me: Progress, device: Any) -> PipelineReport:
    """Run as one stage, together with all other ranks.

    Args:
        params: `world_size`, and under `pipeline`: `stages`, `microbatches`, `schedule` (`gpipe` or `1f1b`). A
            `drill` may hold `stale_weights` (the rank keeps no weights for backward passes), `lose_microbatch` (its
            number: the rank sends zeros in its place), `slow_stage` (so many times the work) and `stall_microbatch`
            (its number: the rank stands still before its forward pass).
    """
    asked = params["pipeline"]
    world_size, stages = int(params["world_size"]), int(asked["stages"])
    microbatches, schedule = int(asked["microbatches"]), str(asked["schedule"])
    note = refused(world_size, stages, microbatches, schedule)
    if note:
        return PipelineReport(stages, microbatches, schedule, note=note)
    stage = _Stage(torch, dist, me, device, world_size, stages, params.get("drill", {}))
    waited = pace.waited_s()
    for step in range(STEPS):
        collectives.barrier("start of pipeline step %d" % step)
        stage.step("step %d" % step, schedule, microbatches, updates=step, flush=True)
    timed = stage.timed
    share = _share(waited, pace.waited_s(), sum(sum(each) for kind in timed.values() for each in kind))
    collectives.barrier("start of the pipeline step without a flush")
    stage.step("step without a flush", schedules.ONE_F_ONE_B, microbatches, updates=STEPS, flush=False)
    forward_s, backward_s = (min(statistics.median(each) for each in timed[kind]) for kind in (FORWARD, BACKWARD))
    slots = schedules.SCHEDULES[schedule](stage.number, stages, microbatches)
    stage_s, busy_s, step_s = _together(torch, collectives, stage, forward_s + backward_s, device)
    mean = sum(stage_s) / stages
    return PipelineReport(
        stages,
        microbatches,
        schedule,
        stage.number,
        stage.compared,
        stage.faults,
        schedules.in_flight(slots),
        round(forward_s, 6),
        round(backward_s, 6),
        round(step_s, 6),
        share,
        [round(each, 6) for each in stage_s],
        round(max(stage_s) / mean, 3),
        round(max(0.0, 1.0 - busy_s / step_s), 3),
        round(schedules.bubble(stages, microbatches), 3),
    )


def refused(world_size: int, stages: int, microbatches: int, schedule: str) -> str:
    """Why there can be no such pipeline; empty where there can."""
    if schedule not in schedules.SCHEDULES:
        return "no schedule is called %r; there are %s" % (schedule, " and ".join(sorted(schedules.SCHEDULES)))
    if not 2 <= stages <= pipeline_oracle.MOST_STAGES:
        return "%d stages; 2 to %d are tried" % (stages, pipeline_oracle.MOST_STAGES)
    if world_size % stages:
        return "%d ranks do not divide by %d stages" % (world_size, stages)
    if not 1 <= microbatches <= pipeline_oracle.MOST_MICROBATCHES:
        return "%d microbatches; 1 to %d are tried" % (microbatches, pipeline_oracle.MOST_MICROBATCHES)
    return ""


def _share(before: Optional[float], after: Optional[float], computed_s: float) -> Optional[float]:
    """The share of the time for work that others had the processor."""
    if before is None or after is None or computed_s <= 0:
        return None
    return round(max(0.0, after - before) / (computed_s + max(0.0, after - before)), 3)


def _together(
    torch: Any, collectives: Any, stage: _Stage, microbatch_s: float, device: Any
) -> Tuple[List[float], float, float]:
    """By stage the slowest replica's time for a microbatch; how long stages worked on average; the longest step."""
    times = torch.zeros(3, stage.stages, device=device)
    times[:, stage.number] = torch.tensor([microbatch_s, stage.busy_s, stage.step_s])
    collectives.largest(times, "times of the pipeline's stages")
    stage_s, busy_s, step_s = times.tolist()
    return stage_s, sum(busy_s) / stage.stages, max(step_s)


class _Stage:
    """The weights of one stage, what is in flight there, and what was found."""

    def __init__(
        self, torch: Any, dist: Any, me: Progress, device: Any, world_size: int, stages: int, drill: Dict[str, Any]
    ) -> None:
        self.stages = stages
        self._width = world_size // stages
        self.number = me.rank // self._width
        self._torch, self._dist, self._me, self._device, self._drill = torch, dist, me, device, drill
        self.faults: List[Fault] = []
        self.compared = 0
        #: Of the last step with a flush: all of it, and what of it was not spent on exchanges.
        self.step_s = self.busy_s = 0.0
        self._idle_s = 0.0
        #: Seconds of each pass, by kind and by step with a flush.
        self.timed: Dict[str, List[List[float]]] = {FORWARD: [], BACKWARD: []}
        self._weights: Any = None
        self._work = _work(torch, device)

    def step(self, name: str, schedule: str, microbatches: int, *, updates: int, flush: bool) -> None:
        """All microbatches once, forwards and backwards, and the update of the weights."""
        expected = Expected(schedule, self.stages, microbatches, self._device, updates=updates, flush=flush)
        if self._weights is None:
            self._weights = expected.weights(self.number, 0)
        slots = schedules.SCHEDULES[schedule](self.number, self.stages, microbatches)
        moves = schedules.exchanges(slots, self.number, self.stages)
        #: Input, weights and output of each microbatch between its passes: weights that move meanwhile are kept.
        held: Dict[int, Tuple[Any, Any, Any]] = {}
        gradient = self._torch.zeros_like(self._weights)
        timed: Dict[str, List[float]] = {FORWARD: [], BACKWARD: []}
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        began, self._idle_s = time.perf_counter(), 0.0
        result = None
        for slot, move in zip(slots, moves):
            came = self._exchange(move, result, name)
            if slot == Slot(FORWARD, self._drill.get("stall_microbatch", -1)):
                time.sleep(3600.0)
            at = self._now()
            if slot.kind == FORWARD:
                value = self._checked(expected, slot, move, came, name, expected.activations)
                kept = (value.requires_grad_(), self._weights.clone().requires_grad_())
                made = _forward(self._torch, *kept)
                held[slot.microbatch] = (*kept, made)
                result = self._made(expected, slot, made.detach(), name)
            else:
                value = self._checked(expected, slot, move, came, name, expected.gradients)
                inputs, own = self._backward(held.pop(slot.microbatch), value)
                result = self._made(expected, slot, inputs, name)
                gradient += own
                if not flush:
                    self._weights = self._weights + pipeline_oracle.RATE * own
            self._work(slot, int(self._drill.get("slow_stage", 1)))
            timed[slot.kind].append(self._now() - at)
            self._me.still()
        self._exchange(moves[-1], result, name)
        took = time.perf_counter() - began
        self._torch.set_num_threads(threads)
        if flush:
            self._weights = self._weights + pipeline_oracle.RATE * gradient
            self.step_s, self.busy_s = took, took - self._idle_s
            for kind, each in timed.items():
                self.timed[kind].append(each)
        rank, number = self._me.rank, self.number
        self._note(expected.judge_weight_gradients(number, rank, gradient, name))
        self._note(pipeline_oracle.judge_weights(expected, number, rank, self._weights, name))
        self._weights = expected.weights(number, microbatches)

    def _now(self) -> float:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _backward(self, held: Tuple[Any, Any, Any], gradient: Any) -> Tuple[Any, Any]:
        """The gradients of the input and of the weights, as autograd has them."""
        inputs, weights, made = held
        if self._drill.get("stale_weights"):
            weights = self._weights.clone().requires_grad_()
            made = _forward(self._torch, inputs, weights)
        made.backward(gradient)
        return inputs.grad, weights.grad

    def _checked(
        self,
        expected: Expected,
        slot: Slot,
        move: Exchange,
        came: Any,
        step: str,
        right: Callable[[int, int], Any],
    ) -> Any:
        """What a slot works on: what came, or the right thing where that is wrong or nothing has to come."""
        at = self.number if slot.kind == FORWARD else self.number + 1
        if move.receive_from is None:
            return right(at, slot.microbatch)
        found = expected.judge(slot, self.number, came, step, sender=self._rank_of(move.receive_from))
        self._note(found)
        return came if found is None else right(at, slot.microbatch)

    def _made(self, expected: Expected, slot: Slot, made: Any, step: str) -> Any:
        """What a slot made, or the right thing where that is wrong."""
        found = expected.judge(slot, self.number, made, step)
        self._note(found)
        if found is None:
            return made
        if slot.kind == FORWARD:
            return expected.activations(self.number + 1, slot.microbatch)
        return expected.gradients(self.number, slot.microbatch)

    def _note(self, found: Optional[Fault]) -> None:
        self.compared += 1
        if found is not None:
            self.faults.append(found)

    def _rank_of(self, stage: int) -> int:
        return self._me.rank + (stage - self.number) * self._width

    def _exchange(self, move: Exchange, result: Any, step: str) -> Any:
        """Send and receive at once; returns what came, None where nothing was to come."""
        dist = self._dist
        operations, peers, words = [], [], []
        came, began = None, time.perf_counter()
        if move.receive is not None and move.receive_from is not None:
            source = self._rank_of(move.receive_from)
            came = self._torch.zeros(2, pipeline_oracle.ELEMENTS, device=self._device)
            operations.append(dist.P2POp(dist.irecv, came, source))
            peers.append(source)
            words.append("receive %s of microbatch %d from rank %d" % (*_named(move.receive), source))
        if move.send is not None and move.send_to is not None:
            target = self._rank_of(move.send_to)
            lost = self._drill.get("lose_microbatch") == move.send.microbatch and move.send.kind == FORWARD
            sent = self._torch.zeros_like(result) if lost else result.contiguous()
            operations.append(dist.P2POp(dist.isend, sent, target))
            peers.append(target)
            words.append("send %s of microbatch %d to rank %d" % (*_named(move.send), target))
        if not operations:
            return None
        self._me.entering("pipeline %s: %s" % (step, ", ".join(words)), waiting_for=peers, brief=True)
        self._await(dist.batch_isend_irecv(operations), peers)
        self._me.left()
        self._idle_s += time.perf_counter() - began
        return came

    def _await(self, works: Sequence[Any], peers: Sequence[int]) -> None:
        """Wait for each; who is through is waited for no longer."""
        for index, work in enumerate(works):
            work.wait()
            left = [peer for peer, other in zip(peers[index + 1 :], works[index + 1 :]) if not other.is_completed()]
            if left:
                self._me.waits_for(left)
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


def _named(slot: Slot) -> Tuple[str, int]:
    return ("activations" if slot.kind == FORWARD else "gradients"), slot.microbatch


def _forward(torch: Any, inputs: Any, weights: Any) -> Any:
    """The stage itself: see `pipeline_oracle`."""
    a, b = inputs[0], inputs[1]
    return torch.stack([a, b + weights * a])


def _work(torch: Any, device: Any) -> Callable[[Slot, int], None]:
    """Work that takes as long as a small layer: the known values alone would measure overheads."""
    size = CPU_SIZE if device.type == "cpu" else pace.GPU_SIZE
    matrix = torch.randn(size, size, device=device)

    def work(slot: Slot, times: int) -> None:
        for _ in range(PRODUCTS * times * (1 if slot.kind == FORWARD else 2)):
            torch.matmul(matrix, matrix)

    return work
