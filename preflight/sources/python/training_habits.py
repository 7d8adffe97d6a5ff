"""Claims about what a training loop does beside its steps: saving its state, profiling, sharing its model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, last
from preflight.sources.python.outline import dotted, end_of

_SAVING = re.compile(
    r"save\w*|\w*_save|\w*checkpoint\w*|dump|\w*ckpt\w*|export\w*|upload\w*|commit|write_model", re.IGNORECASE
)
#: Words of libraries and callbacks that save by themselves.
_SAVES_ITSELF = re.compile(
    r"Trainer\b|callbacks?|[cC]heckpoint(?:er|Manager|Callback)|[lL]ightning|Snapshot|elastic|orbax"
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_PROFILERS = ("profile", "Profiler", "start_profiler")
#: What bounds a profile to some steps.
_SCHEDULES = ("schedule", "scheduler")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about saving, profiling and shared models."""
    steps = [call for call in module.named("backward") if not call.args]
    if steps:
        yield from _savings(module, steps[0])
    yield from _profilers(module)
    if "Process" in module.file.text and "torch" in module.file.text:
        yield from _unshared_models(module)


def _savings(module: Module, step: ast.Call) -> Iterator[Claim]:
    """Whether a script that trains saves anything inside a loop, or through a library."""
    saving = [call for call in module.calls if _SAVING.fullmatch(last(module.called(call)))]
    inside = any(_is_in_loop(module, call) for call in saving) or _SAVES_ITSELF.search(module.file.text) is not None
    yield module.claim("saves_while_training", inside, step, condition="")


def _is_in_loop(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether a call is inside a loop, or in a function that may be called in one."""
    for outer in module.outline.above(node):
        if isinstance(outer, _LOOPS):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [call for call in module.outline.calls_named(outer.name) if call is not node]
            # The callers of a method, or of a function that is passed on, are not known.
            return not calls or depth > 3 or any(_is_in_loop(module, call, depth + 1) for call in calls)
    return False


def _profilers(module: Module) -> Iterator[Claim]:
    """A profiler that records all steps of a loop: without a schedule, and without an end inside the loop."""
    for call in module.named(*_PROFILERS):
        name = module.called(call)
        if "profiler" not in name or any(argument(call, each) is not None for each in _SCHEDULES):
            continue
        loop = _profiled_loop(module, call)
        if loop is None or any(isinstance(node, ast.Break) for node in ast.walk(loop)):
            continue
        ends = {"stop", "stop_profiler", "export_chrome_trace"}
        if any(isinstance(node, ast.Call) and end_of(node.func) in ends for node in ast.walk(loop)):
            continue
        yield module.claim("profiles_every_step", name, call)


def _profiled_loop(module: Module, call: ast.Call) -> ast.AST | None:
    """The training loop that runs while a profiler is on."""
    within = next((outer for outer in module.outline.above(call) if isinstance(outer, ast.With)), None)
    name = module.bound_to(call)
    if within is not None and any(item.context_expr is call for item in within.items):
        return next((node for node in ast.walk(within) if _trains(node)), None)
    started = last(module.called(call)) == "start_profiler" or any(
        dotted(start.func) == f"{name}.start" for start in module.named("start")
    )
    if not started:
        return None
    function = module.outline.function_of(call)
    loops = [loop for loop in module.nodes(ast.For) if module.outline.function_of(loop) is function and _trains(loop)]
    return next((loop for loop in loops if loop.lineno > call.lineno), None)


def _trains(node: ast.AST) -> bool:
    if not isinstance(node, _LOOPS):
        return False
    return any(isinstance(inner, ast.Call) and end_of(inner.func) in ("backward", "run") for inner in ast.walk(node))


def _unshared_models(module: Module) -> Iterator[Claim]:
    """A model that several forked processes train, and that is not in shared memory."""
    if "share_memory" in module.file.text or "spawn" in module.file.text or "forkserver" in module.file.text:
        return
    for call in module.named("Process"):
        target, given = argument(call, "target", 1), argument(call, "args", 2)
        functions = module.outline.functions(end_of(getattr(target, "value", target))) if target is not None else ()
        passed = getattr(given, "value", given)
        if len(functions) != 1 or not isinstance(passed, (ast.Tuple, ast.List)) or not _is_repeated(module, call):
            continue
        trained = _trained_parameters(functions[0])
        for parameter, item in zip(functions[0].args.args, passed.elts, strict=False):
            if parameter.arg in trained and isinstance(item, ast.Name):
                yield module.claim("model_not_shared", item.id, call)
                return


def _is_repeated(module: Module, call: ast.Call) -> bool:
    return any(isinstance(outer, (*_LOOPS, ast.ListComp)) for outer in module.outline.above(call))


def _trained_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The arguments whose parameters the function gives to an optimizer that it steps."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if not {"backward", "step"} <= {end_of(call.func) for call in calls}:
        return set()
    owners = [
        call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters"
    ]
    return {dotted(owner) for owner in owners}
