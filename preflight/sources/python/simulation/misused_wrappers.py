"""Wrappers that a program leaves unused or goes around: optimizers of Horovod and fleet, DeepSpeed, DDP, Accelerate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.sources.python.module import last
from preflight.sources.python.outline import dotted
from preflight.sources.python.simulation.data_origins import holds
from preflight.sources.python.simulation.divergence import called_name
from preflight.sources.python.simulation.run_state import Event, Run
from preflight.sources.python.simulation.values import ClassValue, External, Instance, ListValue

#: horovod/*/__init__.py of 0.28; paddle/distributed/fleet/fleet.py of 3.3 and fluid/incubate/fleet of 1.8.
_MAKES = re.compile(r"^(?:horovod|byteps|paddle)\..*\b(?:DistributedOptimizer|distributed_optimizer)$")
#: Methods that move a model, and what places everything that is made later.
_MOVES = ("cuda", "to", "to_empty", "to_device", "xpu", "npu")
_PLACES_ALL = re.compile(
    r"set_default_(?:device|tensor_type)|init_empty_weights|^torch\.device$|load_state_dict$|\.to\w*_?device$"
)
_DEVICE = re.compile(r"device|cuda|\.to\(|\bhpu\b|\bxpu\b")
#: Functions that return a wrapper of a model, and leave the model as it is: torch 2.13, Paddle 3.3, DeepSpeed 0.18.
_WRAPS_MODEL = frozenset(
    (
        *("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"),
        *("paddle.DataParallel", "paddle.distributed.fleet.distributed_model", "deepspeed.initialize"),
    )
)
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")
#: Methods of an optimizer that change the parameters.
_STEPS = ("step", "minimize", "apply_gradients", "apply")


def features(run: Run) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the features of wrappers that a program uses wrongly: the call, and another one that shows it."""
    if not run.is_complete:
        return
    for event in _wrapped_on_cpu(run.events):
        yield "wrapped_on_cpu", event, None
    for event, stepped in _unused_optimizers(run.events):
        yield "wrapper_unused", event, stepped
    yield from _bypassed_engines(run.events)
    yield from _wrapped_twice(run.events)
    yield from _discarded_wrappers(run.events)
    yield from _held_back_steps(run.events)
    yield from _clipped_before_unscaled(run.events)
    yield from _early_transpilers(run.events)
    yield from _rpc_never_shut_down(run.events)
    yield from _stale_scalers(run.events)
    for event in _unentered_accumulation(run.events):
        yield "accumulation_never_entered", event, None


def _unused_optimizers(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield the calls that create a wrapping optimizer that is never used, with a step of the wrapped one."""
    for at, event in enumerate(events):
        if not _MAKES.search(event.name) or event.doubt > 1 or not event.arguments or not event.node.args:
            continue
        later = events[at + 1 :]
        if any(_uses(each, event.node) for each in later):
            continue
        stepped = next((each for each in later if _steps(each, event)), None)
        if stepped is not None:
            yield event, stepped


def _bypassed_engines(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event]]:
    """Yield the feature of a program that goes around DeepSpeed's engine, the call, and the one that makes the engine.

    Source: deepspeed/runtime/engine.py of 0.17: `backward` exchanges the gradients, and `step` changes the parameters.
    """
    made = [event for event in events if event.name == "deepspeed.initialize" and event.doubt < 2]
    engine = "deepspeed.initialize()"
    if len(made) != 1 or any(event.name == f"{engine}.train_batch" for event in events):
        return
    passes = [event for event in events if called_name(event) == "backward"]
    own = [event for event in passes if event.name == f"{engine}.backward"]
    others = [event for event in passes if event.doubt < 2 and event.name]
    steps = any(event.name == f"{engine}.step" for event in events)
    if not own and steps and others and len(others) == len(passes):
        yield "backward_beside_engine", others[0], made[0]
    if own and not any(called_name(event) == "step" for event in events) and not _is_passed(events, made[0]):
        yield "engine_never_steps", own[0], made[0]


def _wrapped_twice(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the call that wraps a `DataParallel` in a `DistributedDataParallel`.

    Source: torch/nn/parallel/data_parallel.py of 2.13: it copies the model to every visible GPU in each process.
    """
    for event in events:
        inner = event.arguments[0] if event.arguments else event.keywords.get("module")
        is_wrap = event.name.startswith("torch.") and last(event.name) == "DistributedDataParallel" and event.doubt < 2
        if (
            is_wrap
            and isinstance(inner, External)
            and inner.name.startswith("torch.")
            and inner.last == "DataParallel()"
        ):
            yield "wrapped_twice", event, None


def _discarded_wrappers(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the call that wraps a model whose result nothing takes, in a program that trains."""
    for number, event in enumerate(events):
        is_discarded = event.is_statement and event.doubt < 2 and event.name in _WRAPS_MODEL
        if is_discarded and any(called_name(each) == "backward" for each in events[number:]):
            yield "wrapper_discarded", event, None


def _held_back_steps(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the step of a DeepSpeed engine that the program makes only every few batches.

    Source: deepspeed/runtime/engine.py of 0.18 (step counts the micro batches itself).
    """
    steps = [event for event in events if event.name == "deepspeed.initialize().step"]
    if steps and all(map(_is_held_back, steps)):
        yield "engine_step_held_back", steps[0], None


def _clipped_before_unscaled(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the call that clips gradients that a GradScaler has scaled, where nothing unscales them.

    Source: PyTorch documentation, Automatic Mixed Precision examples (gradient clipping).
    """
    scales = next((event for event in events if event.name.endswith("GradScaler().scale")), None)
    clips = next((event for event in events if last(event.name) in _CLIPS and event.doubt < 2), None)
    if (
        scales is None
        or clips is None
        or re.search(r"get_scale|enabled=|init_scale", scales.file.text + clips.file.text)
    ):
        return
    if not any("unscale" in called_name(event) for event in events):
        yield "clipped_before_unscaled", clips, scales


def _early_transpilers(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the call that divides a Fluid program between trainers and servers before it has an optimizer.

    Source: paddle/fluid/transpiler/distribute_transpiler.py of 1.8: it moves the operators that `minimize` adds.
    """
    divides = next((event for event in events if event.name.endswith("DistributeTranspiler().transpile")), None)
    minimized = [number for number, event in enumerate(events) if called_name(event) == "minimize"]
    if divides is not None and minimized and events.index(divides) < minimized[0]:
        yield "transpiled_before_minimize", divides, events[minimized[0]]


def _rpc_never_shut_down(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the call that joins RPC in a branch of ranks that never shut it down.

    Source: torch/distributed/rpc/api.py of 2.13: `shutdown` waits until no worker has work for this one.
    """
    joins = [event for event in events if event.name == "torch.distributed.rpc.init_rpc" and event.doubt < 3]
    ends = [event for event in events if event.name == "torch.distributed.rpc.shutdown"]
    for event in joins if len(joins) > 1 and ends else ():
        beside = [each for each in events[events.index(event) :] if not event.excludes(each)]
        stays = any(called_name(each) in ("sleep", "wait", "join") for each in beside)
        if not stays and all(event.excludes(each) for each in ends):
            yield "rpc_left", event, ends[0]


def _stale_scalers(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event | None]]:
    """Yield the step of a GradScaler that nothing updates.

    Source: torch/amp/grad_scaler.py of 2.13: a second `step` without an `update` between raises RuntimeError.
    """
    steps = [event for event in events if event.name.endswith("GradScaler().step") and event.name.startswith("torch.")]
    scaler = steps[0].function.owner if steps and steps[0].function is not None else None
    if scaler is None or scaler.call is None or any(called_name(event) == "update" for event in events):
        return
    is_repeated = steps[0].times != 1 and steps[0].doubt < 2 and "enabled" not in ast.unparse(scaler.call)
    if is_repeated and not any(holds(each, scaler.call) for event in events for each in _given(event)):
        yield "scaler_never_updated", steps[0], None


def _unentered_accumulation(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the Accelerator of a program that accumulates gradients, if nothing enters its `accumulate`.

    Source: accelerate/accelerator.py of 1.14: `backward` divides by the steps, and only `accumulate` holds steps back.
    """
    made = [event for event in events if event.name.endswith("accelerate.Accelerator") and event.doubt < 2]
    steps = made[0].keywords.get("gradient_accumulation_steps") if len(made) == 1 else None
    if (
        type(steps) is not int
        or steps < 2
        or not any(event.name.endswith("Accelerator().backward") for event in events)
    ):
        return
    own_ways = ("accumulate", "no_sync", "_set_sync_gradients", "_do_sync")
    stepped = [event for event in events if called_name(event) == "step"]
    if not any(called_name(event) in own_ways for event in events) and not any(map(_is_held_back, stepped)):
        yield made[0]


def _is_held_back(step: Event) -> bool:
    """Return whether the program steps only every few batches, by a condition of its own."""
    tests = [*(branch.test for branch in step.branches.values()), *(guard.test for guard in step.guards)]
    return any("%" in ast.unparse(test) or "sync" in ast.unparse(test) for test in tests if test is not None)


def _wrapped_on_cpu(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the call that wraps a model with `device_ids` although nothing before it moves anything to a GPU.

    Source: torch/nn/parallel/distributed.py of 2.13 (device_ids only with modules on GPUs).
    """
    for number, event in enumerate(events):
        is_wrap = last(event.name) == "DistributedDataParallel" and event.name.startswith("torch.") and event.doubt < 2
        devices = event.keywords.get("device_ids") if is_wrap else None
        model = event.arguments[0] if event.arguments else event.keywords.get("module")
        if not isinstance(devices, ListValue) or devices.items == [] or not _is_made_here(model):
            continue
        before = events[:number]
        may_move = any(called_name(each) in _MOVES or _PLACES_ALL.search(each.name) for each in before)
        if not may_move and not any(model is given for each in before for given in _given(each)):
            yield event


def _given(event: Event) -> tuple[Any, ...]:
    return (*event.arguments, *event.keywords.values())


def _is_made_here(model: Any) -> bool:
    """Return whether a model is created on the CPU: it is a torch layer, or the user's class names no device."""
    if isinstance(model, Instance):
        texts = [ast.unparse(each.node) for each in model.owner.order() if isinstance(each, ClassValue)]
        return not model.is_open and not any(_DEVICE.search(text) for text in texts)
    if not isinstance(model, External) or not re.fullmatch(r"torch\.nn\.(?:\w+\.)*[A-Z]\w*\(\)", model.name):
        return False
    return not any(_DEVICE.search(ast.unparse(call)) for call in (model.call,) if call is not None)


def _is_passed(events: Sequence[Event], made: Event) -> bool:
    """Return whether something that is not followed gets what a call made."""
    return any(holds(each, made.node) for event in events for each in (*event.arguments, *event.keywords.values()))


def _steps(event: Event, made: Event) -> bool:
    """Return whether a call is a step of the optimizer that another call wraps, by what it is or by its name."""
    function, inner = event.node.func, made.arguments[0]
    if not isinstance(function, ast.Attribute) or function.attr not in _STEPS:
        return False
    if isinstance(inner, External) and inner.call is not None:
        return _uses(event, inner.call)
    name = dotted(function.value)
    return bool(name) and name == dotted(made.node.args[0]) and event.within is made.within


def _uses(event: Event, call: Any) -> bool:
    """Return whether a call uses the result of another one, or is a method of it."""
    owner = event.function
    while owner is not None:
        if owner.call is call:
            return True
        owner = owner.owner
    return any(holds(each, call) for each in (*event.arguments, *event.keywords.values()))
