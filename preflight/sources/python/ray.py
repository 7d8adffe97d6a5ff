"""Claims of scripts for Ray: what they ask the cluster for, and where they wait for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.job import Claim, alternatives
from preflight.sources.python.module import Module, argument, last, value_of


def claims(module: Module) -> Iterator[Claim]:
    """All claims about placement groups and how they are waited for."""
    if "ray" not in module.file.text:
        return
    for call in module.named("placement_group", "get", "wait", "ScalingConfig"):
        name = module.called(call)
        if last(name) == "placement_group" and (name.startswith("ray") or name == "placement_group"):
            yield from _group(module, call)
        elif last(name) == "ScalingConfig":
            yield from _workers(module, call)
        elif name in ("ray.get", "ray.wait") and call.args and argument(call, "timeout") is None:
            yield from _waits(module, call)


def _group(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "bundles", 0)
    bundles = module.definition(value_of(given)) if given is not None else None
    if isinstance(bundles, ast.BinOp) and isinstance(bundles.op, ast.Mult):
        bundles = bundles.left if isinstance(bundles.left, ast.List) else bundles.right
    listed = bundles.elts if isinstance(bundles, ast.List) else []
    if isinstance(bundles, ast.ListComp):
        listed = [bundles.elt]
    shown: list[str] = []
    for bundle in listed:
        parts = _resources(module, bundle)
        if parts:
            shown.append(parts)
    if shown and given is not None:
        largest = max(shown, key=len) if len(set(shown)) > 1 else shown[0]
        yield module.claim("ray_bundle", largest, given, source="ray")


def _resources(module: Module, bundle: ast.expr) -> str:
    """`CPU 2, GPU 1` of a bundle written out."""
    table = module.definition(bundle)
    parts = []
    for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
        amount = alternatives(module.fold(value))
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(amount) == 1:
            parts.append(f"{key.value} {amount[0]}")
    return ", ".join(parts)


def _workers(module: Module, call: ast.Call) -> Iterator[Claim]:
    """`ScalingConfig(use_gpu=False, resources_per_worker={"GPU": 1})`; without `use_gpu` it is False."""
    given = argument(call, "resources_per_worker")
    if given is None or call.args or any(keyword.arg is None for keyword in call.keywords):
        return
    table = module.definition(value_of(given))
    if not isinstance(table, ast.Dict):
        return
    uses = argument(call, "use_gpu")
    because: tuple[Claim, ...] = ()
    if uses is not None:
        because = (module.claim("ray_train_uses_gpu", module.fold(value_of(uses)), uses, source="ray"),)
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "GPU":
            yield module.claim("ray_train_worker_gpus", module.fold(value), given, because=because, source="ray")


def _waits(module: Module, call: ast.Call) -> Iterator[Claim]:
    """`ray.get(pg.ready())` without a time-out, where `pg` is a placement group."""
    awaited = module.definition(call.args[0])
    if isinstance(awaited, ast.List) and len(awaited.elts) == 1:
        awaited = awaited.elts[0]
    if not (isinstance(awaited, ast.Call) and last(module.called(awaited)) == "ready"):
        return
    receiver = awaited.func.value if isinstance(awaited.func, ast.Attribute) else None
    made = module.definition(receiver) if receiver is not None else None
    if not (isinstance(made, ast.Call) and last(module.called(made)) == "placement_group"):
        return
    because = tuple(_group(module, made))
    yield module.claim(
        "ray_wait_unbounded", module.text(receiver) if receiver else "", call, because=because, source="ray"
    )
