"""Actors of Ray that a script makes and keeps, with what each of them holds for as long as it lives.

Source: python/ray/actor.py of Ray 2.48: an actor that names resources holds them until it ends; one that names none
holds no CPU while it runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Known, Value, lift
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import Module, argument, last, parse_silently, value_of
from preflight.sources.python.outline import dotted

#: The argument for each resource.
_RESOURCES = {"CPU": "num_cpus", "GPU": "num_gpus"}
#: What ends actors, or holds resources for them in another way.
_ENDS = re.compile(r"\bray\.kill\(|\bdel \w|exit_actor|placement_group|PlacementGroup|ray\.shutdown\(|ActorPool")


class _Made(NamedTuple):
    """A call that makes actors: the resources of one, and how many it makes."""

    call: ast.Call
    each: dict[str, Value]
    times: Value


def claims(module: Module) -> Iterator[Claim]:
    """What the actors of each call hold together, and what the cluster has that the script itself starts."""
    if "ray" not in module.file.text or "remote" not in module.file.text:
        return
    for call in module.named("init"):
        if module.called(call) == "ray.init" and argument(call, "address", 0) is None:
            for resource, name in _RESOURCES.items():
                given = argument(call, name)
                if given is not None:
                    yield module.claim(
                        f"ray_own_{resource.lower()}s", module.fold(value_of(given)), given, source="ray"
                    )
    if _ENDS.search(module.file.text) is not None:
        return
    for made in _made(module):
        for resource, amount in made.each.items():
            held = lift(lambda a, b: float(str(a)) * float(str(b)), amount, made.times)
            name = f"ray_held_{resource.lower()}s"
            of_one = module.claim(name, amount, made.call, source="ray")
            yield module.claim(name, held, made.call, source="ray", because=(of_one,))


def _made(module: Module) -> Iterator[_Made]:
    classes = dict(_classes(module.tree)) if "@ray.remote" in module.file.text else {}
    for imported in imports.texts_of_modules(module)[0]:
        if "ray.remote" in imported.text:
            try:
                classes = {**dict(_classes(parse_silently(imported.text))), **classes}
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    for call in module.named("remote"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        options = owner if isinstance(owner, ast.Call) and last(module.called(owner)) == "options" else None
        if options is not None:
            owner = options.func.value if isinstance(options.func, ast.Attribute) else None
        decorator = classes.get(last(dotted(owner)))
        times = _times(module, call)
        if decorator is None or times is None:
            continue
        given = {
            resource: argument(options, name)
            if options is not None and argument(options, name)
            else argument(decorator, name)
            for resource, name in _RESOURCES.items()
        }
        each = {name: module.fold(value_of(item)) for name, item in given.items() if item is not None}
        yield _Made(call, each, times)


def _classes(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """The actor classes of a module, with the call that decorates them: `@ray.remote(num_gpus=1)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and dotted(decorator.func) == "ray.remote":
                    yield node.name, decorator
                elif dotted(decorator) == "ray.remote":
                    yield node.name, ast.Call(decorator, [], [])


def _times(module: Module, call: ast.Call) -> Value | None:
    """How many actors a call makes that are kept; None where that is not known."""
    parent = module.parent(call)
    if isinstance(parent, ast.Assign) and always_reached(module, parent):
        loops = [outer for outer in module.outline.above(parent) if isinstance(outer, (ast.For, ast.While))]
        return None if loops else Known(1)
    comprehension = parent if isinstance(parent, ast.ListComp) and parent.elt is call else None
    kept = module.parent(comprehension) if comprehension is not None else None
    if comprehension is None or not isinstance(kept, ast.Assign) or not always_reached(module, kept):
        return None
    source = comprehension.generators[0]
    counted = source.iter
    if len(comprehension.generators) > 1 or source.ifs or not isinstance(counted, ast.Call):
        return None
    is_range = module.called(counted) == "range" and len(counted.args) == 1
    return module.fold(counted.args[0]) if is_range else None
