"""What a script hands to processes that it starts: those it spawns or forks, and those of its data loaders.

Sources: torch/utils/data/dataloader.py (2.9); multiprocessing/spawn.py (Python 3.12); paddle/distributed/spawn.py,
paddle/io/reader.py (3.2); accelerate/launchers.py (1.10: notebook_launcher).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight._util.budget import spend
from preflight.model.job import Claim, Known, alternatives
from preflight.sources.python.module import MAX_CALL_DEPTH, SPAWNS, Module, argument, is_none, last, value_of
from preflight.sources.python.outline import Function, dotted

LOADERS = ("DataLoader", "StatefulDataLoader", "WebLoader")
#: Base classes of data that can only be iterated; torch's pipes accept `shuffle`.
_STREAMS = frozenset(("IterableDataset", "IterDataPipe"))
#: Methods that pass such data on.
_PASSED_ON = frozenset(
    ("shuffle", "decode", "to_tuple", "map", "filter", "with_format", "batched", "map_tuple", "select_columns", "take")
)
_USES_CUDA = re.compile(r"torch\.cuda\.(?!is_available|device_count|is_initialized|amp|get_arch|FloatTensor)\w+")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SPAWNING = (Known("spawn"), Known("forkserver"))


def notebook_claims(module: Module) -> Iterator[Claim]:
    """Yield features that only the cells of a notebook can have."""
    for call in module.named("spawn", "start_processes"):
        target = call.args[0] if call.args else None
        starts = module.called(call) in SPAWNS and not _forks(module, call)
        if starts and isinstance(target, ast.Name) and module.outline.functions(target.id):
            yield module.feature("spawned_in_notebook", call)
    for call in module.named("notebook_launcher"):
        count = argument(call, "num_processes", 2)
        if count is not None and module.fold(value_of(count)) == Known(1):
            continue
        earlier = _gpu_use_before(module, call)
        if earlier is not None:
            yield module.feature("gpu_used_before_notebook_launcher", call, earlier)


def _gpu_use_before(module: Module, launcher: ast.Call) -> ast.AST | None:
    """Return the first use of a GPU, or the first Accelerator, that the cells make before the launcher is called."""
    for call in module.calls:
        if module.outline.function_of(call) is not None or call.lineno >= launcher.lineno + 1:
            continue
        name = module.called(call)
        moved = last(name) == "cuda" and isinstance(call.func, ast.Attribute) and not call.args
        given = argument(call, "device", 0) if last(name) == "to" else argument(call, "device")
        named = given is not None and any(
            isinstance(item, str) and item.startswith("cuda") for item in alternatives(module.fold(value_of(given)))
        )
        made = name.endswith("Accelerator") and name.startswith("accelerate")
        if call is not launcher and (moved or named or made or _USES_CUDA.fullmatch(name)):
            return call
    return None


def _forks(module: Module, call: ast.Call) -> bool:
    method = argument(call, "start_method", 5)
    return method is not None and module.fold(value_of(method)) != Known("spawn")


def spawned_at_import(module: Module) -> Iterator[Claim]:
    """Yield `mp.spawn` that runs while the module is imported, as it is again in every process that it starts."""
    for call in module.named("spawn", "start_processes"):
        if module.called(call) not in SPAWNS or _forks(module, call):
            continue
        if _runs_at_import(module, call):
            yield module.feature("spawned_at_import", call)


def _runs_at_import(module: Module, node: ast.AST, depth: int = 0) -> bool:
    spend()
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If) and "__name__" in module.text(outer.test):
            return False
        if isinstance(outer, (ast.ClassDef, ast.Lambda, ast.Try)):
            return False
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if outer.decorator_list or depth >= MAX_CALL_DEPTH:
                return False
            callers = [call for call in module.outline.calls_named(outer.name) if isinstance(call.func, ast.Name)]
            return any(_runs_at_import(module, call, depth + 1) for call in callers)
    return True


def loaders_passed_to_spawn(module: Module) -> Iterator[Claim]:
    """Yield a loader among the arguments of Paddle's spawn: it holds a place, which cannot be pickled."""
    for call in module.named("spawn"):
        given = argument(call, "args", 1)
        if module.called(call) != "paddle.distributed.spawn" or given is None:
            continue
        items = value_of(given)
        for item in items.elts if isinstance(items, (ast.Tuple, ast.List)) else ():
            made = module.definition(item)
            if isinstance(made, ast.Call) and module.called(made) == "paddle.io.DataLoader":
                yield module.feature("loader_passed_to_spawn", call, made)
                break


def streams(module: Module) -> Iterator[Claim]:
    """Yield a sampler or `shuffle=True` for data that can only be iterated."""
    for call in module.named(*LOADERS):
        data = argument(call, "dataset", 0)
        kind = _stream_kind(module, value_of(data)) if data is not None else ""
        if not kind:
            continue
        paddle = module.called(call).startswith("paddle")
        for name, position in (("sampler", 3), ("batch_sampler", 4)):
            given = argument(call, name, None if paddle else position)
            if given is not None and not is_none(value_of(given)):
                yield module.feature("sampler_of_stream", given, call)
        shuffled = argument(call, "shuffle", None if paddle else 2)
        if shuffled is not None and kind != "IterDataPipe" and module.fold(value_of(shuffled)) == Known(True):
            yield module.feature("shuffle_of_stream", shuffled, call)


def _stream_kind(module: Module, expression: ast.expr, depth: int = 0) -> str:
    """Return the base class of data that can only be iterated; empty for any other."""
    made = module.definition(expression)
    if not isinstance(made, ast.Call) or depth > MAX_CALL_DEPTH:
        return ""
    short = last(module.called(made))
    streaming = argument(made, "streaming")
    if short == "load_dataset" and streaming is not None and module.fold(value_of(streaming)) == Known(True):
        return "IterableDataset"
    if short == "WebDataset":
        return "IterableDataset"
    if short == "IterableWrapper":
        return "IterDataPipe"
    for each in module.nodes(ast.ClassDef):
        if each.name == short:
            return next((end for base in each.bases if (end := last(module.name(base))) in _STREAMS), "")
    if isinstance(made.func, ast.Attribute) and made.func.attr in _PASSED_ON:
        return _stream_kind(module, made.func.value, depth + 1)
    return ""


def shuffled_beside_sampler(module: Module) -> Iterator[Claim]:
    """Yield `shuffle=True` in a loader that gets a sampler in a distributed run and None in any other."""
    for call in module.named(*LOADERS):
        # Under a condition it may be the branch without a sampler.
        if not module.called(call).startswith("torch.") or module.condition(call):
            continue
        shuffled, given = argument(call, "shuffle", 2), argument(call, "sampler", 3)
        if shuffled is None or given is None or module.fold(value_of(shuffled)) != Known(True):
            continue
        made = list(_values(module, value_of(given)))
        samplers = [
            each for each in made if isinstance(each, ast.Call) and last(module.called(each)).endswith("Sampler")
        ]
        # One that is certainly given is a claim about the loader itself (data_loaders.py).
        if 0 < len(samplers) < len(made) and all("Distributed" in module.called(each) for each in samplers):
            yield module.feature("shuffled_beside_sampler_of_ranks", shuffled, samplers[0])


def _values(module: Module, expression: ast.expr) -> Iterator[ast.expr]:
    """Yield the possible values of a name or a conditional expression: each value that its function assigns."""
    if isinstance(expression, ast.IfExp):
        yield from _values(module, expression.body)
        yield from _values(module, expression.orelse)
        return
    name = dotted(expression)
    assigned = module.outline.assignments(module.outline.function_of(expression)).get(name, []) if name else []
    for each in assigned or [expression]:
        if isinstance(each, ast.IfExp):
            yield from (each.body, each.orelse)
        else:
            yield each


def unpicklable(module: Module) -> Iterator[Claim]:
    """Yield a lambda or a local function that has to be pickled for a process that is spawned."""
    for call in module.named("spawn", "start_processes"):
        given = argument(call, "args", 1)
        if module.called(call) not in SPAWNS or _forks(module, call):
            continue
        items = value_of(given) if given is not None else None
        for item in (*call.args[:1], *(items.elts if isinstance(items, (ast.Tuple, ast.List)) else ())):
            if _is_local_function(module, item):
                yield module.feature("unpicklable_for_spawn", item)
                return
    spawning = any(
        call.args and module.fold(call.args[0]) in _SPAWNING and not module.condition(call)
        for call in module.named("set_start_method")
    )
    for call in module.named(*LOADERS):
        workers, context = argument(call, "num_workers", 5), argument(call, "multiprocessing_context")
        named = context is not None and module.fold(value_of(context)) in _SPAWNING
        if workers is None or not (named or (context is None and (spawning or _is_in_spawned(module, call)))):
            continue
        count = module.fold(value_of(workers))
        if count == Known(0):
            continue
        condition = None if isinstance(count, Known) else f"{module.text(value_of(workers))} is not 0"
        for name in ("worker_init_fn", "collate_fn"):
            given = argument(call, name)
            if given is not None and any(
                _is_local_function(module, each) for each in _values_of(module, value_of(given))
            ):
                yield module.feature("unpicklable_for_worker", given, call, condition=condition)
                return


def _is_in_spawned(module: Module, node: ast.AST) -> bool:
    """Return whether a spawned process comes here, which starts its own processes in the same way."""
    around = {each.name for each in module.outline.above(node) if isinstance(each, _FUNCTIONS)}
    return any(
        module.called(call) in SPAWNS and call.args and dotted(call.args[0]) in around and not _forks(module, call)
        for call in module.named("spawn", "start_processes")
    )


def _values_of(module: Module, expression: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression; for a parameter, what the calls of its function give it."""
    yield expression
    function = module.outline.function_of(expression)
    if not isinstance(expression, ast.Name) or function is None:
        return
    names = [each.arg for each in function.args.args]
    if expression.id in names:
        for call in module.outline.calls_named(function.name):
            given = argument(call, expression.id, names.index(expression.id))
            if given is not None:
                yield value_of(given)


def _is_local_function(module: Module, expression: ast.expr) -> bool:
    """Return a lambda, or a function that is defined in another function."""
    if isinstance(module.definition(expression), ast.Lambda):
        return True
    if not isinstance(expression, ast.Name):
        return False
    found = module.outline.functions(expression.id)
    around = [each for each in module.outline.above(expression) if isinstance(each, _FUNCTIONS)]
    given = {each.arg for function in around for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return len(found) == 1 and module.parent(found[0]) in around and expression.id not in given


def forked_with_gpu(module: Module) -> Iterator[Claim]:
    """Yield processes that are forked after this one has used the GPU, and that use it themselves."""
    if re.search(r"[\"'](?:spawn|forkserver)[\"']", module.file.text):
        return
    for call in module.named("Process"):
        target = argument(call, "target", 1)
        functions = module.outline.functions(dotted(value_of(target))) if target is not None else ()
        earlier = _gpu_use_before(module, call)
        if earlier is not None and any(_uses_gpu(module, function) for function in functions):
            yield module.feature("forked_with_gpu", call, earlier)
            return


def _uses_gpu(module: Module, function: Function) -> bool:
    return any(
        last(module.called(call)) == "cuda" or _USES_CUDA.fullmatch(module.called(call))
        for call in module.outline.calls_in(function)
    )
