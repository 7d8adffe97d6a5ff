"""Claims about the GPU that a rank uses."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator

from preflight.model.job import Claim, Known, Unresolved, Value, alternatives, is_whole_number
from preflight.sources.python.module import Module, argument, enclosing, last, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import is_local, is_rank, variable_read

_MASK = "CUDA_VISIBLE_DEVICES"
#: Calls that choose a GPU, by the last part of their names.
_CHOOSING = ("set_device", "DistributedDataParallel", "device", "to", "cuda", "CUDAPlace", "set_visible_devices")
#: Questions about one GPU, which fail for an index that does not exist.
_ASKED = ("get_device_properties", "get_device_name", "get_device_capability", "mem_get_info")
_CONVERSIONS = ("int", "str")
#: Only the last of more lists than this before a choice counts.
_MAX_MASKS = 8
_DEVICE = re.compile(r"(?:cuda|gpu):?")
_NUMBERED = re.compile(r"cuda:(\d{1,3})")
#: The environment's value applies if the script sets no list itself.
_CALLER_MASK = Unresolved("the list in CUDA_VISIBLE_DEVICES")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about the GPU that a rank uses."""
    masks = sorted(_masks(module), key=lambda found: found[1])
    behind = _behind_own_mask(module, masks)
    if behind is not None:
        yield module.claim("script_feature", "indexed_behind_own_mask", behind)
    for call in module.named(*_CHOOSING, *_ASKED):
        for chosen in _selected_index(module, call):
            listed = _from_mask(module, chosen, masks)
            number = _number(module, chosen)
            if listed is not None:
                yield module.claim("device_of_masked_list", listed, call)
            elif number is not None:
                yield module.claim("device_index", number, call)
            elif is_rank(module, _unwrap(module, chosen)) and is_local(module, chosen) and not _is_set(module, chosen):
                chosen_text: Value = Known(module.text(call))
                if "device_count" in module.file.text or _is_tried(module, call):
                    chosen_text = Unresolved("the script may adapt to the GPUs that it sees")
                yield module.claim("device_of_local_rank", chosen_text, call)
            elif _is_global_rank(module, chosen):
                yield module.claim("device_of_global_rank", module.text(chosen), call)
    for call in module.calls:
        # `device_id=` of NVIDIA DALI's pipelines.
        given = argument(call, "device_id")
        is_pipeline = argument(call, "num_threads") is not None
        if given is not None and is_pipeline and _is_global_rank(module, value_of(given)):
            yield module.claim("device_of_global_rank", module.text(value_of(given)), call)
    # `config.gpu_options.visible_device_list = str(hvd.rank())` of TensorFlow 1
    for node in module.nodes(ast.Assign):
        if end_of(node.targets[0]) == "visible_device_list" and _is_global_rank(module, node.value):
            yield module.claim("device_of_global_rank", module.text(node.value), node.value)


def _behind_own_mask(module: Module, masks: list[tuple[ast.expr, int]]) -> ast.AST | None:
    """Return the first choice of a GPU by the rank after the same function has left one visible, by the rank as well.

    `os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank)` leaves a rank GPU 0 alone, unless CUDA was in use before.
    """
    chosen: list[tuple[ast.expr, ast.expr]] = [
        (each, call) for call in module.named(*_CHOOSING, *_ASKED) for each in _selected_index(module, call)
    ]
    for node in module.nodes(ast.Assign):
        if end_of(node.targets[0]) == "visible_device_list":
            chosen.append((node.value, node.value))
    for mask, line in masks[:1]:
        around = enclosing(module, mask)
        here = [(each, at) for each, at in chosen if enclosing(module, at) is around]
        if module.condition(mask) or not _is_local_rank(module, mask) or any(at.lineno < line for _, at in here):
            return None
        return next((at for each, at in here if _is_local_rank(module, each)), None)
    return None


def _is_local_rank(module: Module, index: ast.expr) -> bool:
    """Return whether a text or number is the rank of a process on its node."""
    rank = _unwrap(module, index)
    return is_rank(module, rank) and is_local(module, rank)


def _is_set(module: Module, chosen: ast.expr) -> bool:
    """Return whether a variable with the name of a rank is always assigned a number after its rank."""
    assigned: set[ast.AST | None] = set()
    for node in module.nodes(ast.Assign):
        if not any(dotted(target) == dotted(chosen) != "" for target in node.targets):
            continue
        function = module.outline.function_of(node)
        is_number = isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
        if is_number and function in assigned and not module.condition(node):
            return True
        assigned.add(function)
    return False


def _is_tried(module: Module, call: ast.Call) -> bool:
    """Return whether a call is in the body of a `try` that handles its failure."""
    child, parent = module.parent(call), module.parent(call)
    while parent is not None:
        if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
            return True
        child, parent = parent, module.parent(parent)
    return False


def _masks(module: Module) -> Iterator[tuple[ast.expr, int]]:
    """Yield the values of CUDA_VISIBLE_DEVICES in the script, with their lines."""
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Subscript) or module.name(target.value) != "os.environ":
                continue
            if getattr(module.fold(target.slice), "value", None) == _MASK:
                yield node.value, node.lineno


def _selected_index(module: Module, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the index of the GPU that a call selects."""
    name = module.called(call)
    given: list[ast.keyword | ast.expr | None] = []
    if last(name) == "set_device" and any(library in name for library in ("cuda", "torch", "npu", "paddle")):
        given = [argument(call, "device", 0)]
    elif last(name) == "CUDAPlace":
        given = [argument(call, "id", 0)]
    elif last(name) == "DistributedDataParallel":
        found = argument(call, "device_ids", 1)
        listed = module.definition(value_of(found)) if found is not None else None
        given = list(listed.elts) if isinstance(listed, ast.List) else []
    elif last(name) in _ASKED and "cuda" in name:
        given = [argument(call, "device", 0)]
    elif name == "torch.device":
        given = [argument(call, "index", 1) or argument(call, "device", 0)]
    elif last(name) == "set_visible_devices":
        shown = argument(call, "devices", 0)
        given = [each.slice for each in ast.walk(shown) if isinstance(each, ast.Subscript)] if shown is not None else []
    elif last(name) in ("to", "cuda") and isinstance(call.func, ast.Attribute):
        given = [argument(call, "device", 0)]
    for each in given:
        if each is None:
            continue
        expression = module.definition(value_of(each))
        if isinstance(expression, ast.JoinedStr):
            parts = expression.values
            if len(parts) == 2 and isinstance(parts[0], ast.Constant) and _DEVICE.fullmatch(str(parts[0].value)):
                expression = parts[1].value if isinstance(parts[1], ast.FormattedValue) else expression
        yield expression


def _number(module: Module, chosen: ast.expr) -> Value | None:
    """Return the index if it is a literal: `3`, `"cuda:3"`; GPU 0 always exists."""
    found = alternatives(module.fold(chosen))
    if len(found) != 1:
        return None
    if isinstance(found[0], str):
        match = _NUMBERED.fullmatch(found[0])
        return Known(int(match.group(1))) if match and int(match.group(1)) else None
    is_index = isinstance(found[0], int) and not isinstance(found[0], bool) and found[0] > 0
    return Known(found[0]) if is_index else None


def _from_mask(module: Module, chosen: ast.expr, masks: list[tuple[ast.expr, int]]) -> Value | None:
    """Return the mask's list from which an index is taken; None if the index is not taken from one."""
    expression = _unwrap(module, chosen)
    end = bisect_right(masks, getattr(chosen, "lineno", 0), key=lambda found: found[1])
    before = [mask for mask, _ in masks[max(0, end - _MAX_MASKS) : end]]
    for mask in before:
        # `environ[...] = str(gpu)` and `set_device(gpu)`: a list of one.
        if _are_same(module, expression, mask) or (chosen is not mask and _are_same(module, chosen, mask)):
            return _indices(module.fold(mask))
    if not isinstance(expression, ast.Subscript):
        return None
    listed = _unwrap(module, expression.value)
    whole = listed
    if isinstance(listed, (ast.ListComp, ast.GeneratorExp)) and len(listed.generators) == 1:
        whole = _unwrap(module, listed.generators[0].iter)
    if isinstance(whole, ast.Call) and isinstance(whole.func, ast.Attribute) and whole.func.attr == "split":
        whole = whole.func.value
        if not masks and variable_read(module, whole) == _MASK:
            return _CALLER_MASK
    for mask in before:
        if (
            variable_read(module, whole) == _MASK
            or _are_same(module, whole, mask)
            or _is_joined_list(module, mask, listed)
        ):
            return _indices(module.fold(mask))
    return None


def _unwrap(module: Module, expression: ast.expr) -> ast.expr:
    """Return the argument of `int(...)` and the like."""
    for _ in range(5):
        meant = module.definition(expression)
        if isinstance(meant, ast.Call) and module.called(meant) in _CONVERSIONS and len(meant.args) == 1:
            meant = meant.args[0]
        elif isinstance(meant, ast.Call) and module.called(meant) in ("list", "tuple", "map") and meant.args:
            meant = meant.args[-1]
        if meant is expression:
            break
        expression = meant
    return expression


def _are_same(module: Module, first: ast.expr, second: ast.expr) -> bool:
    """Return whether two expressions are the same variable, or have the same run-time value."""
    inner = second
    if isinstance(second, ast.Call) and second.args and isinstance(second.func, ast.Name):
        inner = second.args[0]
    name = module.name(first)
    if name and name == module.name(inner):
        # Two functions may use one name for different things.
        names = [each for each in (first, inner) if isinstance(each, ast.Name)]
        return len(names) < 2 or module.bindings_of(names[0]) is module.bindings_of(names[1])
    found = _unwrap(module, second)
    return found is first and not isinstance(found, ast.Constant)


def _is_joined_list(module: Module, mask: ast.expr, listed: ast.expr) -> bool:
    """Return whether the mask is `",".join(...)` over that very list."""
    if not (isinstance(mask, ast.Call) and isinstance(mask.func, ast.Attribute) and mask.func.attr == "join"):
        return False
    names = [node for node in ast.walk(mask) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    listed_name = listed.id if isinstance(listed, ast.Name) else ""
    return any(module.definition(name) is listed or name.id == listed_name for name in names)


def _indices(value: Value) -> Value:
    found = alternatives(value)
    if len(found) != 1:
        return value if isinstance(value, Unresolved) else Unresolved("one of several lists")
    parts = [part.strip() for part in str(found[0]).split(",")]
    if not all(is_whole_number(part) and len(part) < 5 for part in parts):
        return Unresolved(f"{found[0]!r} is not a list of indices")
    return Known(tuple(int(part) for part in parts))


def _is_global_rank(module: Module, chosen: ast.expr) -> bool:
    """Return whether the index certainly is the rank in the whole job: queried from the group, or read from RANK."""
    meant = _unwrap(module, chosen)
    variable = variable_read(module, meant)
    if variable is not None:
        return variable in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PADDLE_TRAINER_ID")
    if isinstance(meant, ast.Attribute) and meant.attr == "local_rank" and not is_local(module, meant):
        # `ParallelEnv().local_rank` of Paddle is the rank in the whole job.
        return True
    if isinstance(meant, ast.Name) and meant.id in ("rank", "global_rank"):
        # A parameter beside one for the rank on the node.
        function = module.outline.function_of(meant)
        names = [each.arg for each in function.args.args] if function is not None else []
        return meant.id in names and "local_rank" in names
    if not isinstance(meant, ast.Call) or not is_rank(module, meant) or is_local(module, meant):
        return False
    name = module.called(meant)
    return (last(name) == "get_rank" and not meant.args) or (name.startswith("horovod.") and last(name) == "rank")
