"""Models whose weights a program writes and reads: wrapped, so that each key begins with `module.`, or bare.

DistributedDataParallel and DataParallel of torch hold the model as `module`; those of Paddle pass their keys on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim
from preflight.sources.python.model_features import modules_with
from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import Function, dotted, end_of

_WRAPPERS = ("DistributedDataParallel", "DataParallel")
#: What holds no weights of a model.
_OTHERS = re.compile(r"opt|sched|scaler|ema|loader|sampler|amp", re.IGNORECASE)
#: Words that show that keys are changed, or may differ.
_ADAPTS = re.compile(r"[\"']module\b|consume_prefix|removeprefix|strict\s*=|unwrap|\[7:\]|_orig_mod")
_MAX_DEPTH = 4


class _Access(NamedTuple):
    """A call that writes the weights of a model to a file, or reads them from one; in a function or in the script."""

    quantity: str
    model: ast.expr
    path: ast.expr
    call: ast.Call
    function: Function | None


def claims(module: Module) -> Iterator[Claim]:
    """Yield the files that a script writes and reads weights with: `saved_weights` and `loaded_weights`."""
    if "DataParallel" not in module.file.text and "DistributedDataParallel" not in module.file.text:
        return
    helpers = [*modules_with(module, "torch.save("), *modules_with(module, "load_state_dict(")]
    if any(_ADAPTS.search(each.file.text) for each in (module, *helpers)):
        return
    for access in _accesses(module):
        yield from _access_claims(module, access, access.call, access.model, access.path)
    for holder in {each.file.path: each for each in (*helpers, module)}.values():
        for access in _accesses(holder):
            for call in module.named(access.function.name) if access.function is not None else ():
                model, path = (_passed_argument(access.function, call, part) for part in (access.model, access.path))
                model = access.model if end_of(access.model) == "module" else model
                if model is not None:
                    yield from _access_claims(module, access, call, model, path or access.path)


def state_claims(module: Module) -> Iterator[Claim]:
    """Yield entries of the one checkpoint of a script that its resumption leaves out, and a model that gets them all.

    The checkpoint is a dictionary with the states of several objects: `{"model": model.state_dict(), "epoch": 1}`.
    """
    saves = [
        call for call in module.named("save") if module.called(call) in ("torch.save", "paddle.save") and call.args
    ]
    loads = [call for call in module.named("load") if module.called(call) in ("torch.load", "paddle.load")]
    table = module.definition(saves[0].args[0]) if len(saves) == 1 else None
    name = module.bound_to(loads[0]) if len(loads) == 1 else ""
    if not isinstance(table, ast.Dict) or not name or not all(isinstance(key, ast.Constant) for key in table.keys):
        return
    states = {
        str(key.value): value
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and end_of(value.func) == "state_dict"
    }
    function = module.outline.function_of(loads[0])
    uses = [
        node
        for node in module.nodes(ast.Name)
        if node.id == name and isinstance(node.ctx, ast.Load) and module.outline.function_of(node) is function
    ]
    read = {_key_read(module, use) for use in uses}
    assigned = [
        node
        for node in module.nodes(ast.Assign)
        if name in map(dotted, node.targets) and module.outline.function_of(node) is function
    ]
    if not states or len(table.keys) < 2 or len(assigned) != 1:
        return
    for use in uses:
        call = module.parent(use)
        if not isinstance(call, ast.Call) or use not in call.args or not isinstance(call.func, ast.Attribute):
            continue
        owners = {end_of(each.func.value) for each in states.values() if isinstance(each.func, ast.Attribute)}
        if call.func.attr in _SETS_STATE and len(states) > 1 and end_of(call.func.value) in owners:
            yield module.feature("state_of_several_loaded", call, saves[0])
            return
    missing = [key for key in states if key not in read]
    if "" not in read and len(read & states.keys()) > 1 and missing:
        yield module.feature(f"state_not_restored:{missing[0]}", states[missing[0]], loads[0])


_SETS_STATE = ("load_state_dict", "set_state_dict", "set_dict")


def _key_read(module: Module, use: ast.expr) -> str:
    """Return the key of `state["key"]`, `state.get("key")` and `"key" in state`; empty for any other use."""
    outer = module.parent(use)
    key: ast.AST | None = outer.slice if isinstance(outer, ast.Subscript) and outer.value is use else None
    if isinstance(outer, ast.Compare) and use in outer.comparators:
        key = outer.left
    if isinstance(outer, ast.Attribute) and outer.attr in ("get", "pop"):
        call = module.parent(outer)
        key = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return str(key.value) if isinstance(key, ast.Constant) else ""


def _accesses(module: Module) -> Iterator[_Access]:
    for call in module.named("save"):
        data, path = argument(call, "obj", 0), argument(call, "f", 1)
        if module.called(call) != "torch.save" or data is None or path is None:
            continue
        parts = [node for node in ast.walk(module.definition(value_of(data))) if isinstance(node, ast.Call)]
        called = [node.func for node in parts if isinstance(node.func, ast.Attribute)]
        owners = [function.value for function in called if function.attr == "state_dict"]
        models = [owner for owner in owners if not _OTHERS.search(dotted(owner))]
        if len(models) == 1:
            yield _Access("saved_weights", models[0], value_of(path), call, module.outline.function_of(call))
    for call in module.named("load_state_dict"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        tried = any(isinstance(outer, ast.Try) for outer in module.outline.above(call))
        if owner is None or tried or _OTHERS.search(dotted(owner)) or len(call.args) != 1 or call.keywords:
            continue
        read = _read(module, call.args[0])
        path = argument(read, "f", 0) if read is not None else None
        if path is not None:
            yield _Access("loaded_weights", owner, value_of(path), call, module.outline.function_of(call))


def _read(module: Module, state: ast.expr) -> ast.Call | None:
    """Return the `torch.load` that a state comes from, as a whole or as an entry of the loaded object."""
    for _ in range(_MAX_DEPTH):
        if isinstance(state, ast.Call):
            return state if module.called(state) == "torch.load" else None
        state = state.value if isinstance(state, ast.Subscript) else module.definition(state)
    return None


def _passed_argument(function: Function | None, call: ast.Call, part: ast.expr) -> ast.expr | None:
    """Return the argument that a call passes for a parameter of the function; None if the part is another
    expression.
    """
    names = [each.arg for each in function.args.args] if function is not None else []
    if not isinstance(part, ast.Name) or part.id not in names:
        return None
    given = argument(call, part.id, names.index(part.id))
    return value_of(given) if given is not None else None


def _access_claims(module: Module, access: _Access, at: ast.Call, model: ast.expr, path: ast.expr) -> Iterator[Claim]:
    kind = _kind(module, model, at)
    if kind:
        of = module.claim("script_feature", kind, at, condition="")
        yield module.claim(access.quantity, module.fold(path), at, because=(of,))


def _kind(module: Module, model: ast.expr, at: ast.Call) -> str:
    """Return whether a model is `wrapped` or `bare` at a call; empty if that is not certain."""
    if end_of(model) == "module":
        return "bare"
    name, function = dotted(model), module.outline.function_of(at)
    if not name:
        return ""
    wraps = [call for call in module.named(*_WRAPPERS) if module.called(call).startswith("torch.") and call.args]
    into = [call for call in wraps if module.bound_to(call) == name]
    if any(module.condition(call) or module.outline.function_of(call) is not function for call in into):
        return ""
    if any(call.lineno < at.lineno for call in into):
        return "wrapped"
    taken = [call for call in wraps if dotted(call.args[0]) == name and module.outline.function_of(call) is function]
    return "bare" if taken else ""
