"""Claims of Ray scripts: the resources that they request from the cluster, and where they wait for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Unresolved, Value, alternatives
from preflight.model.job.quantities import SECTION
from preflight.sources.python.module import Module, argument, last, value_of


def claims(module: Module) -> Iterator[Claim]:
    """All claims about placement groups and waiting for them."""
    if "ray" not in module.file.text:
        return
    for call in module.named("placement_group", "get", "wait", "ScalingConfig"):
        name = module.called(call)
        if last(name) == "placement_group" and (name.startswith("ray") or name == "placement_group"):
            yield from _group(module, call)
        elif last(name) == "ScalingConfig":
            yield from _workers(module, call)
            yield from _arguments(module, call)
        elif name in ("ray.get", "ray.wait") and call.args and argument(call, "timeout") is None:
            yield from _waits(module, call)


def _group(module: Module, call: ast.Call) -> Iterator[Claim]:
    given = argument(call, "bundles", 0)
    bundles = module.definition(value_of(given)) if given is not None else None
    if given is not None and bundles is not None:
        yield module.claim("ray_workers", _count(module, bundles), given, source="ray")
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


def _count(module: Module, bundles: ast.expr) -> Value:
    """The number of bundles in a literal list, `[{"GPU": 1}] * workers`, or a comprehension over `range(workers)`."""
    if isinstance(bundles, ast.List):
        return Known(len(bundles.elts))
    if isinstance(bundles, ast.BinOp) and isinstance(bundles.op, ast.Mult):
        listed, times = bundles.left, bundles.right
        if not isinstance(listed, ast.List):
            listed, times = times, listed
        if isinstance(listed, ast.List) and len(listed.elts) == 1:
            return module.fold(times)
    if isinstance(bundles, ast.ListComp) and len(bundles.generators) == 1 and not bundles.generators[0].ifs:
        counted = bundles.generators[0].iter
        if isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1:
            return module.fold(counted.args[0])
    return Unresolved(f"{module.text(bundles)}: known only at run time")


def _resources(module: Module, bundle: ast.expr) -> str:
    """`CPU 2, GPU 1` from a literal bundle."""
    table = module.definition(bundle)
    parts = []
    for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
        amount = alternatives(module.fold(value))
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and len(amount) == 1:
            parts.append(f"{key.value} {amount[0]}")
    return ", ".join(parts)


def _workers(module: Module, call: ast.Call) -> Iterator[Claim]:
    """`ScalingConfig(use_gpu=False, resources_per_worker={"GPU": 1})`; without `use_gpu` it is False."""
    workers = argument(call, "num_workers")
    if workers is not None:
        yield module.claim("ray_workers", module.fold(value_of(workers)), workers, source="ray")
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


def _arguments(module: Module, call: ast.Call) -> Iterator[Claim]:
    """The call with its arguments; nothing if not all arguments are literal."""
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return
    found: list[Claim] = []
    for keyword in call.keywords:
        value, name = module.definition(keyword.value), f"setting.ray.{keyword.arg}"
        if isinstance(value, ast.Dict):
            found.append(module.claim(name, Known(SECTION), keyword, source="ray"))
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append(module.claim(f"{name}.{key.value}", module.fold(inner), keyword, source="ray"))
        elif isinstance(value, ast.List):
            # Lists are not taken for tuples; all that counts of one is its length.
            found.append(module.claim(name, Known("a list"), keyword, source="ray"))
            found.append(module.claim(f"{name}.count", Known(len(value.elts)), keyword, source="ray"))
        else:
            found.append(module.claim(name, module.fold(keyword.value), keyword, source="ray"))
    yield module.claim("ray_scaling", Known("ScalingConfig"), call, because=tuple(found), source="ray")


def _waits(module: Module, call: ast.Call) -> Iterator[Claim]:
    """`ray.get(pg.ready())` without a timeout, where `pg` is a placement group."""
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
