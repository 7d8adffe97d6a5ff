"""Claims about Horovod: what starts it, wraps optimizers, and exchanges weights.

Sources: horovod/common/basics.py (rank() and its like stop before init()) and horovod/torch/optimizer.py (an optimizer
takes backward_passes_per_step backward passes a step) of 0.28; byteps/common/__init__.py of 0.2.5, derived from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from preflight.model.job import Claim, Known, Unresolved, Value, alternatives
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import MAX_CALL_DEPTH, Module, argument, last, value_of

_OPTIMIZERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "DistributedTrainer")
#: Calls that give all ranks the same initial weights; elastic states do it on synchronisation.
_BROADCAST = re.compile(
    r"broadcast_(?:parameters|variables|global_variables|object|optimizer_state)|[Bb]roadcastGlobalVariables\w*"
    r"|BroadcastParameters|(?:Torch|TensorFlow|TensorFlowKeras|Object)?(?:Keras)?State\(|elastic\.run|hvd\.broadcast\("
)
#: What keeps and restores the state of an elastic training.
_ELASTIC = re.compile(r"elastic\.run|(?:Torch|TensorFlow|TensorFlowKeras|Object|Keras)State\(|elastic\.\w*State")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about Horovod."""
    if "horovod" not in module.file.text:
        return
    broadcast = _BROADCAST.search(module.file.text)
    if broadcast is not None:
        yield module.claim("horovod_broadcasts", broadcast.group(0).rstrip("("), module.tree, condition="")
    elastic = _ELASTIC.search(module.file.text)
    if elastic is not None:
        yield module.claim("elastic_state", elastic.group(0).rstrip("("), module.tree, condition="")
    for call in module.named("init", *_OPTIMIZERS):
        name = module.called(call)
        if not name.startswith("horovod."):
            continue
        if last(name) == "init":
            yield module.claim("horovod_started", True, call)
        elif last(name) in _OPTIMIZERS:
            yield module.claim("horovod_optimizer", last(name), call)


#: Questions to Horovod and BytePS that stop before `init()`.
_QUESTIONS = ("rank", "local_rank", "size", "local_size", "cross_rank", "cross_size")
_PACKAGES = ("horovod.", "byteps.")
_STARTS = re.compile(r"\b(?:hvd|bps|horovod|byteps)\S*\.init\(|from (?:horovod|byteps)\S* import [^\n]*\binit\b")
#: Libraries that start nothing, beside the frameworks.
_HARMLESS = frozenset(("PIL", "cv2", "matplotlib", "pandas", "scipy", "sklearn", "tensorboardX", "tqdm", "yaml"))
#: Libraries that may start Horovod themselves.
_STARTERS = re.compile(r"lightning|ludwig|tensorpack|ignite|composer|determined|catalyst|texar|opennmt|fairseq|nvidia")


#: Places in the order in which a script comes to them.
_Way: TypeAlias = "tuple[tuple[int, int], ...]"


def asked_before_start(module: Module) -> Iterator[Claim]:
    """The first question that comes before Horovod is started: in the script, or in a module while it is imported.

    A module states what it asks by itself, the script which modules it imports too early.
    """
    asked = [call for call in module.named(*_QUESTIONS) if module.called(call).startswith(_PACKAGES)]
    asked = [call for call in asked if always_reached(module, call)]
    starts = [call for call in module.named("init") if module.called(call).startswith(_PACKAGES)]
    started = _first(module, starts)
    if starts and started is None:
        # In a method, or in a function that something else calls.
        return
    for call in asked:
        if module.outline.function_of(call) is None and _comes_before(_first(module, [call]), started):
            yield module.claim("script_feature", f"asked_at_import:{module.file.path}", call, condition="")
            break
    modules, complete = imports.texts_of_modules(module)
    if not complete or any(_STARTS.search(each.text) for each in modules):
        return
    libraries = set(imports.libraries(module))
    if any(map(_STARTERS.search, libraries)):
        return
    condition = "" if starts or libraries <= imports.FRAMEWORKS | _HARMLESS else "unless a library starts Horovod"
    first = min(((way, call) for call in asked for way in _ways(module, call)), key=lambda item: item[0], default=None)
    if first is not None and _comes_before(first[0], started):
        yield module.feature(f"asked_before_start:{module.file.path}", first[1], *starts[:1], condition=condition)
    asking = {each.path for each in modules if any(package in each.text for package in _PACKAGES)}
    lines = {each.span.line: each.target for each in imports.references(module, "") if each.target in asking}
    for node in (*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)):
        if node.lineno in lines and always_reached(module, node) and _comes_before(_first(module, [node]), started):
            name = f"imported_before_start:{lines[node.lineno]}"
            yield module.claim("script_feature", name, node, condition=condition)


def _ways(module: Module, node: ast.AST, depth: int = 0) -> Iterator[_Way]:
    """The places of the calls through which a script comes to a node, and that of the node."""
    function = module.outline.function_of(node)
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    if function is None:
        yield (place,)
        return
    for call in module.outline.calls_named(function.name) if depth < MAX_CALL_DEPTH else ():
        if isinstance(call.func, ast.Name) and module.outline.function_of(call) is not function:
            for way in _ways(module, call, depth + 1):
                yield (*way, place)


def _first(module: Module, nodes: Sequence[ast.AST]) -> _Way | None:
    return min((way for node in nodes for way in _ways(module, node)), default=None)


def _comes_before(way: _Way | None, started: _Way | None) -> bool:
    return way is not None and (started is None or way < started)


#: Ends the exchange of the passes so far, or changes how many there are.
_SYNCHRONIZES = re.compile(r"\.synchronize\(|set_backward_passes_per_step")


def single_pass_optimizers(module: Module) -> Iterator[Claim]:
    """Optimizers of Horovod and BytePS that take one backward pass a step."""
    for call in module.named("DistributedOptimizer"):
        if not module.called(call).startswith(("horovod.torch", "byteps.torch")):
            continue
        passes = argument(call, "backward_passes_per_step", 3)
        open_ended = any(each.arg is None for each in call.keywords)
        one = passes is None or module.fold(value_of(passes)) == Known(1)
        if one and not open_ended and _SYNCHRONIZES.search(module.file.text) is None:
            yield module.feature("optimizer_of_one_pass", call)


def repeated_passes(module: Module) -> Iterator[Claim]:
    """The first backward pass of which several come to one step of an optimizer."""
    if _SYNCHRONIZES.search(module.file.text) is not None:
        return
    for step in module.named("step"):
        owner = step.args[0] if step.args and "scaler" in module.called(step) else step.func
        if "opt" not in module.text(owner).lower() or (owner is step.func and step.args):
            continue
        function = module.outline.function_of(step)
        for backward in module.named("backward"):
            if module.outline.function_of(backward) is not function:
                continue
            times = _passes(module, backward, step)
            if times is not None and times != Known(1):
                certain = all(isinstance(item, int) and item > 1 for item in alternatives(times) or (0,))
                condition = "" if certain else "if there are several passes"
                yield module.feature("backward_repeated", backward, step, condition=condition)
                return


def _passes(module: Module, backward: ast.Call, step: ast.Call) -> Value | None:
    """How many backward passes come to a step; None where there is one, or they are not in one place."""
    around, above = list(module.outline.above(step)), list(module.outline.above(backward))
    shared = next((node for node in above if any(node is other for other in around)), None)
    inner = above[: next((n for n, node in enumerate(above) if node is shared), 0)]
    outer = around[: next((n for n, node in enumerate(around) if node is shared), 0)]
    loops = [node for node in inner if isinstance(node, (ast.For, ast.While))]
    if len(loops) == 1 and backward.lineno < step.lineno and not any(isinstance(node, ast.If) for node in inner):
        return _rounds(module, loops[0])
    branches = [node for node in outer if isinstance(node, ast.If)]
    in_loop = isinstance(shared, (ast.For, ast.While))
    if not loops and in_loop and len(branches) == 1 and not any(isinstance(node, ast.If) for node in inner):
        every = [n for n in ast.walk(branches[0].test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
        return module.fold(every[0].right) if len(every) == 1 and not isinstance(branches[0].test, ast.BoolOp) else None
    return None


def _rounds(module: Module, loop: ast.For | ast.While) -> Value:
    """How often a loop runs, as far as `range(4)` shows it."""
    counted = loop.iter if isinstance(loop, ast.For) else None
    if isinstance(counted, ast.Call) and module.called(counted) == "range" and len(counted.args) == 1:
        return module.fold(counted.args[0])
    listed = module.definition(counted) if counted is not None else None
    if isinstance(listed, (ast.List, ast.Tuple)) and not any(isinstance(each, ast.Starred) for each in listed.elts):
        return Known(len(listed.elts))
    return Unresolved("a number of rounds that is known only at run time")
