"""Claims about collectives that only some ranks come to, and about those that a failed rank waits in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.job import Claim
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, argument, is_none, last, value_of
from preflight.sources.python.outline import Function, end_of
from preflight.sources.python.ranks import Who
from preflight.sources.python.standing import ranks_of

#: Every rank has to come to these, whoever they are called on.
UNMISTAKABLE = frozenset(
    (
        "all_reduce",
        "all_gather_object",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "broadcast_object_list",
        "gather_object",
        "monitored_barrier",
        "wait_for_everyone",
        "allreduce",
        "allgather_object",
        "broadcast_parameters",
        "broadcast_optimizer_state",
        "broadcast_object",
    )
)
#: These, where the name before them is that of a communication library.
_OF_LIBRARY = frozenset(
    ("barrier", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all", "allgather", "reduce_scatter")
)
#: Names that are looked at more closely.
COLLECTIVES = (*sorted(UNMISTAKABLE), *sorted(_OF_LIBRARY))
_LIBRARY = lazy_pattern(
    r"(?:^|\.)(?:dist|distributed|hvd|horovod\.\w+|accelerator|fabric|comm|torch\.distributed)\.\w+$"
)
_FIRSTS = (Who.FIRST, Who.LOCAL_FIRST)
_SAVES_TOGETHER = ("save_checkpoint", "save_16bit_model")


def is_collective(module: Module, call: ast.Call) -> bool:
    """Whether every rank of the job has to come to this call (a group of its own is not every rank)."""
    name = module.called(call)
    short = last(name)
    if short not in UNMISTAKABLE and not (short in _OF_LIBRARY and _LIBRARY.search(name)):
        return False
    for group in (argument(call, "group"), argument(call, "process_group")):
        if group is not None and not is_none(value_of(group)):
            return False
    return not (short == "barrier" and call.args) and not (short == "all_reduce" and len(call.args) > 2)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about collectives that hang."""
    yield from _guarded(module)
    yield from _left(module)


def _guarded(module: Module) -> Iterator[Claim]:
    engines = _engines(module)
    sharded = {module.bound_to(call) for call in module.named("FullyShardedDataParallel")} - {""}
    found: dict[int, list[tuple[ast.Call, Who, ast.expr]]] = {}
    functions: dict[int, Function | None] = {}
    for call in module.named(*_SAVES_TOGETHER, "state_dict", *COLLECTIVES):
        together = last(module.called(call)) in _SAVES_TOGETHER and _receiver(module, call) in engines
        # The state of a sharded model is gathered from all ranks.
        together = together or (last(module.called(call)) == "state_dict" and _receiver(module, call) in sharded)
        if not together and not is_collective(module, call):
            continue
        standing = ranks_of(module).inside(call)
        if standing.test is None or standing.who in (Who.ALL, Who.UNTOLD, Who.SOME):
            continue
        function = module.outline.function_of(call)
        functions[id(function)] = function
        found.setdefault(id(function), []).append((call, standing.who, standing.test))
    for calls in found.values():
        # Both the first and the others come to one: together, before or behind one another.
        if len({who in _FIRSTS for _, who, _ in calls}) > 1:
            continue
        for call, who, test in calls:
            if not _has_counterpart(module, call):
                guard = module.claim("checkpoint_guard", who.value, test, condition="")
                yield module.claim("guarded_collective", who.value, call, because=(guard,))


def _has_counterpart(module: Module, call: ast.Call) -> bool:
    """Whether another branch of a condition around a call may hold what the other ranks come to."""
    child: ast.AST = call
    for outer in module.outline.above(call):
        if isinstance(outer, ast.If) and child is not outer.test:
            other = outer.body if module.outline.is_else(child) else outer.orelse
            if any(isinstance(node, ast.Call) for each in other for node in ast.walk(each)):
                return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        child = outer
    return False


def _engines(module: Module) -> frozenset[str]:
    """The variables that hold an engine of DeepSpeed or a trainer of Lightning, all of whose ranks save together."""
    found = set()
    for call in module.named("Trainer"):
        if module.called(call).startswith(("lightning", "pytorch_lightning")):
            found.add(module.bound_to(call))
    for node in module.nodes(ast.Assign):
        if isinstance(node.value, ast.Call) and module.called(node.value) == "deepspeed.initialize":
            target = node.targets[0]
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            found.add(module.name(first))
    return frozenset(found - {""})


def _receiver(module: Module, call: ast.Call) -> str:
    return module.name(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _left(module: Module) -> Iterator[Claim]:
    """`finally: destroy_process_group()`, or a barrier there, reached when the rank has failed."""
    for call in module.named("destroy_process_group", "barrier"):
        short = last(module.called(call))
        if (
            call.args
            or call.keywords
            or (short != "destroy_process_group" and not (short == "barrier" and is_collective(module, call)))
        ):
            continue
        place = _on_failure(module, call)
        if place is not None:
            yield module.claim("group_left_on_failure", short, place, condition="")
            continue
        function = module.outline.function_of(call)
        if function is None or module.outline.function_of(function) is not None:
            continue
        for caller in module.outline.calls_named(function.name):
            place = _on_failure(module, caller) if caller is not call else None
            if place is not None:
                yield module.claim("group_left_on_failure", short, place, condition="")


def _on_failure(module: Module, call: ast.Call) -> ast.AST | None:
    """The call itself, when it stands in the `finally` or `except` of a `try` that trains."""
    child: ast.AST = call
    for outer in module.outline.above(call):
        if isinstance(child, ast.stmt) and _behind_swallowed(module, child):
            return call
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
        if isinstance(outer, ast.Try) and any(child is each for each in outer.finalbody):
            return call if _trains(outer.body) else None
        if isinstance(outer, ast.ExceptHandler):
            guarded = module.outline.parent(outer)
            return call if _is_broad(outer) and isinstance(guarded, ast.Try) and _trains(guarded.body) else None
        child = outer
    return None


def _behind_swallowed(module: Module, statement: ast.stmt) -> bool:
    """Whether a `try` that trains stands before this, whose handler swallows whatever happened."""
    before = module.outline.before(statement)
    if not isinstance(before, ast.Try) or before.orelse or not _trains(before.body):
        return False
    return any(_is_broad(handler) and not _leaves(handler) for handler in before.handlers)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = end_of(handler.type) if handler.type is not None else "Exception"
    return caught in ("Exception", "BaseException", "RuntimeError")


def _leaves(handler: ast.ExceptHandler) -> bool:
    for node in (each for statement in handler.body for each in ast.walk(statement)):
        if isinstance(node, (ast.Raise, ast.Return, ast.Continue, ast.Break)):
            return True
        if isinstance(node, ast.Call) and end_of(node.func) in ("exit", "_exit", "abort", "kill", "quit"):
            return True
    return False


def _trains(statements: list[ast.stmt]) -> bool:
    """Whether these statements do work of their own, more than closing things."""
    calls = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    names = {end_of(call.func) for call in calls}
    return bool(names - {"barrier", "destroy_process_group", "synchronize", "print", "info", "close", "is_initialized"})
