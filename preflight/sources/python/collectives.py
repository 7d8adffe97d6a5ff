"""Claims about collectives that only some ranks reach, and about collectives in which a failed rank waits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.executing_ranks import ranks_of
from preflight.sources.python.module import Module, argument, is_none, last, value_of
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, ranks_where_true

#: Calls that every rank must make, on any object.
UNAMBIGUOUS_CALLS = frozenset(
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
        "barrier_worker",
    )
)
#: The same, if the name before them is that of a communication library.
_LIBRARY_CALLS = frozenset(
    (
        "barrier",
        "all_gather",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
        "allgather",
        "reduce_scatter",
        "new_group",
    )
)
#: Names that are examined more closely.
COLLECTIVES = (*sorted(UNAMBIGUOUS_CALLS), *sorted(_LIBRARY_CALLS))
_LIBRARY = re.compile(
    r"(?:^|\.)(?:dist|distributed|hvd|horovod\.\w+|accelerator|fabric|strategy|comm|torch\.distributed)\.\w+$"
)
#: What a call inside may not be reached in. A loop is not among them: a training loop runs.
_MAY_SKIP = (ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
_SAVES_TOGETHER = ("save_checkpoint", "save_16bit_model")
#: Methods of Accelerate's accelerator that gather parts from all ranks where the model is divided among them.
_GATHERS = ("get_state_dict", "save_state")
_ACCELERATOR = re.compile(r"(?:^|\.)_?(?:accelerator|accelerate|acc)\.\w+$", re.IGNORECASE)
#: Calls of these need no other rank.
_ALONE = re.compile(r"(?:torch\.save|torch\.load|print|open|len|str|int|(?:os|shutil|json|logging|time|pathlib)\..+)$")
#: Functions that call each other are followed to this depth.
_MAX_CALLERS = 5


def is_collective(module: Module, call: ast.Call) -> bool:
    """Whether every rank of the job has to make this call, not only a subgroup."""
    name = module.called(call)
    short = last(name)
    if short not in UNAMBIGUOUS_CALLS and not (short in _LIBRARY_CALLS and _LIBRARY.search(name)):
        return False
    for group in (argument(call, "group"), argument(call, "process_group")):
        if group is not None and not is_none(value_of(group)):
            return False
    if short == "new_group" and argument(call, "use_local_synchronization") is not None:
        return False
    return not (short == "barrier" and call.args) and not (short == "all_reduce" and len(call.args) > 2)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about collectives that hang."""
    yield from _guarded_collectives(module)
    yield from _guarded_gathers(module)
    yield from _orders_in_branches(module)
    yield from _guarded_trainer_saves(module)
    yield from _collectives_in_finally(module)


def _guarded_collectives(module: Module) -> Iterator[Claim]:
    engines = _engines(module)
    sharded = {module.bound_to(call) for call in module.named("FullyShardedDataParallel")} - {""}
    found: dict[int, list[tuple[ast.Call, RankSet, ast.expr]]] = {}
    functions: dict[int, Function | None] = {}
    for call in module.named(*_SAVES_TOGETHER, "state_dict", *COLLECTIVES):
        together = last(module.called(call)) in _SAVES_TOGETHER and _receiver(module, call) in engines
        # The state of a sharded model is gathered from all ranks.
        together = together or (last(module.called(call)) == "state_dict" and _receiver(module, call) in sharded)
        if not together and not is_collective(module, call):
            continue
        guard_of = ranks_of(module).inside(call)
        if guard_of.test is None or guard_of.who in (RankSet.ALL, RankSet.UNDECIDED, RankSet.SOME):
            continue
        function = module.outline.function_of(call)
        functions[id(function)] = function
        found.setdefault(id(function), []).append((call, guard_of.who, guard_of.test))
    for calls in found.values():
        # Both rank 0 and the others make one, together or in sequence.
        if len({who in _FIRST_RANKS for _, who, _ in calls}) > 1:
            continue
        for call, who, test in calls:
            if not _has_counterpart(module, call):
                guard = module.claim("checkpoint_guard", who.value, test, condition="")
                yield module.claim("guarded_collective", who.value, call, because=(guard,))
                if _is_unmatched(module, call, test):
                    yield module.claim("collective_unmatched", True, call, condition="")


def _guarded_gathers(module: Module) -> Iterator[Claim]:
    """`accelerator.get_state_dict(model)` on one rank, which hangs where the model is divided among ranks."""
    for call in module.named(*_GATHERS):
        if not _ACCELERATOR.search(_full_name(call)):
            continue
        guard_of = ranks_of(module).inside(call)
        if guard_of.test is None or guard_of.who in (RankSet.ALL, RankSet.UNDECIDED, RankSet.SOME):
            continue
        if _has_counterpart(module, call):
            continue
        guard = module.claim("checkpoint_guard", guard_of.who.value, guard_of.test, condition="")
        yield module.claim("guarded_gather", guard_of.who.value, call, because=(guard,))
        if _is_reached(module, call, guard_of.test):
            yield module.claim("collective_unmatched", True, call, condition="")


def _orders_in_branches(module: Module) -> Iterator[Claim]:
    """A condition on the rank whose two branches make different collectives, one after the other."""
    for branch in module.nodes(ast.If):
        if not branch.orelse or ranks_where_true(module, branch.test) in (RankSet.ALL, RankSet.UNDECIDED):
            continue
        first, second = _sequence(module, branch.body), _sequence(module, branch.orelse)
        if not first or not second:
            continue
        names = [[last(module.called(call)) for call in calls] for calls in (first, second)]
        if names[0] == names[1]:
            continue
        index = next(
            (i for i, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), min(map(len, names))
        )
        at = first[index] if index < len(first) else second[index]
        guard = module.claim("checkpoint_guard", module.text(branch.test), branch.test, condition="")
        shown = " and ".join(", ".join(each) for each in names)
        yield module.claim("collective_order_differs", shown, at, because=(guard,), condition="")


def _sequence(module: Module, statements: list[ast.stmt]) -> list[ast.Call]:
    """The collectives that a branch certainly makes; empty if a call in it may make another."""
    found: list[ast.Call] = []
    for statement in statements:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return []
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call):
                continue
            if is_collective(module, node):
                found.append(node)
            elif isinstance(node.func, ast.Name) and module.outline.functions(node.func.id):
                # A function of the script may make collectives of its own.
                return []
    return found


def _guarded_trainer_saves(module: Module) -> Iterator[Claim]:
    """`if trainer.is_world_process_zero(): trainer.save_model()`, which gathers a sharded model from all ranks."""
    trainers = {module.bound_to(call) for call in module.calls if last(module.called(call)).endswith("Trainer")} - {""}
    for call in module.named("save_model") if trainers else ():
        if dotted(call.func.value if isinstance(call.func, ast.Attribute) else None) not in trainers:
            continue
        guard_of = ranks_of(module).inside(call)
        if guard_of.test is None or guard_of.who not in _FIRST_RANKS:
            continue
        guard = module.claim("checkpoint_guard", guard_of.who.value, guard_of.test, condition="")
        yield module.claim("guarded_trainer_save", guard_of.who.value, call, because=(guard,), condition="")


def _full_name(call: ast.Call) -> str:
    """`self.accelerator.save_state`, also where the first part is an argument."""
    return dotted(call.func)


def _is_unmatched(module: Module, call: ast.Call, test: ast.expr) -> bool:
    """Whether the call is certainly made under its one condition, and the script has no other call of that name."""
    if isinstance(test, ast.BoolOp) or sum(1 for _ in module.named(last(module.called(call)))) > 1:
        return False
    if any(_may_hold_counterpart(module, node) for node in module.nodes(ast.If) if node.test is not test):
        return False
    return _is_reached(module, call, test)


def _is_reached(module: Module, node: ast.AST, test: ast.expr | None, depth: int = 0) -> bool:
    """Whether the script certainly comes to a node, given the one condition `test`, in every step or every few."""
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If):
            if outer.test is not test and not _comes_round(outer.test) and not _is_main(outer.test):
                return False
        elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            callers = [call for call in module.outline.calls_named(outer.name) if call is not node]
            return depth < _MAX_CALLERS and any(_is_reached(module, call, None, depth + 1) for call in callers)
        elif isinstance(outer, _MAY_SKIP):
            return False
    return True


def _comes_round(test: ast.expr) -> bool:
    """Whether this is `step % 100 == 0`, which every rank finds true again and again."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.BinOp) and isinstance(test.left.op, ast.Mod)


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _may_hold_counterpart(module: Module, node: ast.If) -> bool:
    """Whether only some ranks make a call here that may wait in a function that is not read."""
    if ranks_where_true(module, node.test) in (RankSet.ALL, RankSet.UNDECIDED):
        return False
    return any(
        isinstance(inner, ast.Call) and not _ALONE.match(module.called(inner))
        for each in (*node.body, *node.orelse)
        for inner in ast.walk(each)
    )


def _has_counterpart(module: Module, call: ast.Call) -> bool:
    """Whether another branch of a condition around a call may contain the counterpart for the other ranks."""
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
    """The variables that hold an engine of DeepSpeed or a trainer of Lightning, in which all ranks save together."""
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


def _collectives_in_finally(module: Module) -> Iterator[Claim]:
    """`finally: destroy_process_group()`, or a barrier there, reached when the rank has failed."""
    if not module.nodes(ast.Try):
        return
    wrappers: dict[str, str] = {}
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
        if function is not None and module.outline.function_of(function) is None:
            wrappers.setdefault(function.name, short)
    for name, short in wrappers.items():
        for caller in module.outline.calls_named(name):
            place = _on_failure(module, caller)
            if place is not None:
                yield module.claim("group_left_on_failure", short, place, condition="")


def _on_failure(module: Module, call: ast.Call) -> ast.AST | None:
    """The call itself, if it is in the `finally` or `except` of a `try` that trains."""
    child: ast.AST = call
    for outer in module.outline.above(call):
        if isinstance(child, ast.stmt) and _after_swallowed(module, child):
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


def _after_swallowed(module: Module, statement: ast.stmt) -> bool:
    """Whether it follows a `try` that trains and whose handler swallows any error."""
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
    """Whether these statements do more than close resources."""
    calls = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    names = {end_of(call.func) for call in calls}
    return bool(names - {"barrier", "destroy_process_group", "synchronize", "print", "info", "close", "is_initialized"})
