"""Optimizers that exchange gradients and that a program leaves unused: `hvd.DistributedOptimizer(optimizer)` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.sources.python.outline import dotted
from preflight.sources.python.simulation.data_origins import holds
from preflight.sources.python.simulation.divergence import called_name
from preflight.sources.python.simulation.run_state import Event
from preflight.sources.python.simulation.values import External

#: horovod/*/__init__.py of 0.28; paddle/distributed/fleet/fleet.py of 3.3 and fluid/incubate/fleet of 1.8.
_MAKES = re.compile(r"^(?:horovod|byteps|paddle)\..*\b(?:DistributedOptimizer|distributed_optimizer)$")
#: Methods of an optimizer that change the parameters.
_STEPS = ("step", "minimize", "apply_gradients", "apply")


def unused_wrappers(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
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


def bypassed_engines(events: Sequence[Event]) -> Iterator[tuple[str, Event, Event]]:
    """Yield the feature of a program that goes around DeepSpeed's engine, the call, and the one that makes the engine.

    Source: deepspeed/runtime/engine.py of 0.19: `backward` exchanges the gradients, and `step` changes the parameters.
    """
    made = [event for event in events if event.name == "deepspeed.initialize" and event.doubt < 2]
    engine = "deepspeed.initialize()"
    if len(made) != 1 or any(event.name == f"{engine}.train_batch" for event in events):
        return
    passes = [event for event in events if called_name(event) == "backward"]
    own = [event for event in passes if event.name == f"{engine}.backward"]
    others = [event for event in passes if event.doubt < 2 and event.name]
    if not own and others and len(others) == len(passes):
        yield "backward_beside_engine", others[0], made[0]
    if own and not any(called_name(event) == "step" for event in events) and not _is_passed(events, made[0]):
        yield "engine_never_steps", own[0], made[0]


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
