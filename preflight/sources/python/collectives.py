"""Claims about collectives that only some ranks reach: behind conditions, and in loops that one rank leaves; and about
rings and pairs in which every rank waits to send before any receives, or the other way round.

A step that runs `backward` of a distributed model is a collective. A rank that leaves the loop because of its own loss
or clock leaves the others waiting. A value that was reduced, gathered or broadcast is the same on all ranks; so is a
step count.

Sources: MPI 4.1, 3.5 (a standard send may wait for its receive); torch/distributed/distributed_c10d.py of 2.13 and
paddle/distributed/communication/send.py of 3.3, whose sends wait for the receiver.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from preflight._util import toml
from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.rank_conditions import (
    RankSet,
    decorated,
    first_without,
    is_rank,
    ranks_of,
    ranks_where_true,
)
from preflight.sources.python.simulation.libraries import pattern

_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
#: Signs that a module may wait for other ranks.
_COMMUNICATES = re.compile(
    r"\.distributed\b|tf\.distribute\b|DataParallel\b|\bdist\.|horovod|hvd\.|mpi4py|\bcomm\.|deepspeed|[Aa]ccelerator|[Ff]abric\b"
    r"|barrier|\bbroadcast(?!_to)\w*\(|(?:all|_)gather|gather_|all_?reduce|wait_for_everyone|synchronize|Trainer\b"
)
#: Stands for the name of an object that is called itself.
_ITSELF = "(itself)"


class _Call(NamedTuple):
    """A row of `collectives.toml`, whose head describes the fields."""

    names: tuple[str, ...]
    of: re.Pattern[str] | None = None
    made_by: frozenset[str] = frozenset()
    unless: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    setup: bool = False
    divided: bool = False


@functools.cache
def _calls() -> dict[str, tuple[_Call, ...]]:
    """Return the rows by the names in them."""
    found: dict[str, tuple[_Call, ...]] = {}
    for row in toml.beside(__file__, "collectives.toml")["call"]:
        call = _Call(
            (_ITSELF,) if row.get("itself") else tuple(row["names"]),
            re.compile(row["of"]) if "of" in row else None,
            frozenset(row.get("made_by", ())),
            tuple(row.get("unless", ())),
            tuple(row.get("given", ())),
            tuple(row.get("along", ())),
            row.get("setup", False),
            row.get("divided", False),
        )
        for name in call.names:
            found[name] = (*found.get(name, ()), call)
    return found


def _row_of(module: Module, call: ast.Call) -> _Call | None:
    """Return the row of a call that every rank has to make; None for any other, and for one within a group of its
    own.
    """
    name = module.called(call)
    for row in _calls()[_ITSELF]:
        if row.made_by & _makers_of(module, module.name(call.func), call):
            return row
    for row in _calls().get(last(name), ()):
        # `self.accelerator.save_state`, also where the first part is an argument.
        if row.of is not None and not row.of.search(name) and not row.of.search(dotted(call.func)):
            continue
        if row.made_by and not row.made_by & _makers(module, call):
            continue
        if row.given and not any(_is_on(argument(call, word)) for word in row.given):
            continue
        if _is_part(module, call):
            continue
        if row.along and not module.named(*row.along):
            continue
        return None if _is_of_group(call) or any(_is_on(argument(call, word)) for word in row.unless) else row
    return None


def _is_part(module: Module, call: ast.Call) -> bool:
    """Return whether a call is made through a communicator of MPI that has a part of the ranks."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(receiver, (ast.Name, ast.Attribute)):
        return receiver is not None and end_of(getattr(receiver, "func", receiver)).startswith(_PARTS)
    meant = module.definition(receiver)
    made = module.outline.assigned_once(meant) or meant
    return isinstance(made, ast.Call) and end_of(made.func).startswith(_PARTS)


#: What makes a communicator of some ranks.
_PARTS = ("Split", "Create", "Intercomm", "Spawn", "Get_parent", "Sub")


def _is_on(given: ast.keyword | ast.expr | None) -> bool:
    """Return whether an argument is passed and is not False."""
    written = None if given is None else value_of(given)
    return written is not None and not (isinstance(written, ast.Constant) and not written.value)


#: Names of groups and of what returns one.
_OF_A_GROUP = re.compile(r"group$|^(?:tp|pp|dp|ep|cp|leaders?|sub_?comm)$")


def _is_of_group(call: ast.Call) -> bool:
    """Return whether only the ranks of a group make the call."""
    short = end_of(call.func)
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if receiver is not None and _OF_A_GROUP.search(
        end_of(receiver.func if isinstance(receiver, ast.Call) else receiver)
    ):
        return True
    groups = [argument(call, word) for word in ("process_group", "process_set")]
    for given in (argument(call, "group", toml.beside(__file__, "collectives.toml")["group"].get(short)), *groups):
        group = None if given is None else value_of(given)
        # Horovod takes a name in the place of the group.
        if group is not None and not isinstance(group, ast.Constant) and end_of(group) != "WORLD":
            return True
    return short == "new_group" and argument(call, "use_local_synchronization") is not None


def _makers(module: Module, call: ast.Call) -> frozenset[str]:
    """Return the calls that create the object whose method a call is: `model, opt = deepspeed.initialize(...)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if owner is None:
        return frozenset()
    made = _makers_of(module, module.name(owner), call)
    # `with FSDP.state_dict_type(model, ...)` asks it of a sharded model only.
    withs = [outer for outer in module.outline.above(call) if isinstance(outer, ast.With)]
    items = [item.context_expr for outer in withs for item in outer.items]
    of_type = [item for item in items if isinstance(item, ast.Call) and last(module.called(item)) == "state_dict_type"]
    is_sharded = any(dotted(item.args[0]) == dotted(owner) for item in of_type if item.args)
    return made | {"FullyShardedDataParallel"} if is_sharded else made


def _makers_of(module: Module, name: str, at: ast.AST) -> frozenset[str]:
    """Return the names of the calls that may have created a variable's value: only those in the same function, if
    there are any.
    """
    made = _creating_calls(module).get(name, ())
    function = module.outline.function_of(at)
    here = [makers for around, makers in made if around is function]
    return frozenset().union(*(here or [makers for _, makers in made]))


@functools.lru_cache(maxsize=1)
def _creating_calls(module: Module) -> dict[str, list[tuple[Function | None, frozenset[str]]]]:
    """Return the calls that create the object of each variable, and their functions."""
    found: dict[str, list[tuple[Function | None, frozenset[str]]]] = {}
    for node in module.nodes(ast.Assign):
        target = node.targets[0]
        name = module.name(target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target)
        if name and isinstance(node.value, ast.Call):
            called = module.called(node.value)
            given = {f"{last(called)}({each.arg})" for each in node.value.keywords if _is_on(each)}
            makers = frozenset({called, last(called)} | given)
            found.setdefault(name, []).append((module.outline.function_of(node), makers))
    return found


#: Calls that make groups of some ranks (mpi4py 4.1, torch 2.13).
_SUBGROUP = re.compile(r"\.(Split\w*|Create\w*|new_group|new_subgroups\w*)\(")


def is_collective_event(name: str, call: ast.Call, made_with: Collection[str] = (), *, is_of_all: bool = False) -> bool:
    """Return whether every rank has to make a call of something, by its full name: `torch.distributed.barrier`.

    Args:
        made_with: the keywords of the call that made the object whose method is called.
        is_of_all: whether the group that it is given has all ranks.
    """
    if _SUBGROUP.search(name):
        return False
    owner, _, short = name.rpartition(".")
    if not name and isinstance(call.func, ast.Attribute):
        short = call.func.attr
    if name.endswith("()"):
        # The object that a call made is called itself.
        owner, short = name, _ITSELF
    maker = last(owner.removesuffix("()"))
    makers = {owner.removesuffix("()"), maker, *(f"{maker}({word})" for word in made_with)}
    for row in _calls().get(short, ()):
        if row.divided or row.along:
            continue
        if row.of is not None and not row.of.search(name) and not row.of.search(dotted(call.func)):
            continue
        if row.made_by and not row.made_by & makers:
            continue
        if row.given and not any(_is_on(argument(call, word)) for word in row.given):
            continue
        is_of_group = not is_of_all and _is_of_group(call)
        return not is_of_group and not any(_is_on(argument(call, word)) for word in row.unless)
    return False


def is_collective(module: Module, call: ast.Call) -> bool:
    """Return whether every rank of the job communicates in this call, not only a subgroup, and not to set something
    up.
    """
    row = _row_of(module, call)
    return row is not None and not row.setup and not row.made_by and not row.divided


def collectives(module: Module) -> Iterator[ast.Call]:
    """Yield the calls of a script that are collectives, name by name."""
    return (call for call in module.named(*_calls()) if is_collective(module, call))


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about collectives that hang."""
    word = _COMMUNICATES.search(module.file.text)
    if word is not None:
        yield module.claim("communicates", True, module.tree, spelling=word.group(), condition="")
    yield from _guarded_collectives(module)
    yield from _in_loops_by_rank(module)
    yield from _orders_in_branches(module)
    yield from _guarded_trainer_saves(module)
    yield from _collectives_in_finally(module)


def _guarded_collectives(module: Module) -> Iterator[Claim]:
    """Yield calls that every rank has to make, where only some come."""
    found: dict[int, list[tuple[ast.Call, _Call, RankSet, ast.expr]]] = {}
    themselves = frozenset().union(*(row.made_by for row in _calls()[_ITSELF]))
    objects = {name for name, made in _creating_calls(module).items() if any(makers & themselves for _, makers in made)}
    called = [call for call in module.calls if objects and module.name(call.func) in objects]
    operations = _operations(module)
    for call in (*module.named(*_calls()), *called, *operations):
        row = _RUN if call in operations else _row_of(module, call)
        if row is None:
            continue
        guard_of = ranks_of(module).inside(call)
        function = module.outline.function_of(call)
        if guard_of.who is RankSet.ALL and function is not None:
            guard_of = decorated(function)
        if guard_of.test is None or guard_of.who in (RankSet.ALL, RankSet.UNDECIDED):
            continue
        if guard_of.who is RankSet.SOME:
            alone = sum(1 for _ in module.named(last(module.called(call)))) == 1
            if not alone or _left_out(module, call, guard_of.test) is None:
                continue
        found.setdefault(id(function), []).append((call, row, guard_of.who, guard_of.test))
    for calls in found.values():
        # Both rank 0 and the others make one, together or in sequence.
        if len({who in _FIRST_RANKS for _, row, who, _ in calls if not row.divided}) > 1:
            continue
        for call, row, who, test in calls:
            if not _has_counterpart(module, call) and not is_met_in_loop(module.tree, call, test):
                guard = module.claim("checkpoint_guard", who.value, test, condition="")
                left_out = _left_out(module, call, test) if who is RankSet.SOME else None
                because = () if left_out is None else (module.claim("rank_left_out", left_out, test, condition=""),)
                quantity = "guarded_gather" if row.divided else "guarded_collective"
                yield module.claim(quantity, who.value, call, because=(guard, *because))


#: An operation that a session runs.
_RUN = _Call(("run",))
_OPERATION = re.compile(r"horovod\.tensorflow\.(?:broadcast|allreduce|allgather)\w*")


def _operations(module: Module) -> list[ast.Call]:
    """Return `session.run(op)` of an operation of Horovod that was made before, as TensorFlow 1 does."""
    runs = module.named("run") if "horovod.tensorflow" in module.file.text else []
    made = [(call, module.definition(call.args[0])) for call in runs if call.args]
    return [call for call, item in made if isinstance(item, ast.Call) and _OPERATION.match(module.called(item))]


def _left_out(module: Module, call: ast.Call, test: ast.expr) -> int | None:
    """Return the lowest rank that does not reach a call under a condition like `rank < 2`; None if that is not
    known.
    """
    child: ast.AST = call
    for outer in module.outline.above(call):
        if isinstance(outer, ast.If) and outer.test is test:
            return first_without(module, test, otherwise=module.outline.is_else(child))
        child = outer
    # `if rank == 1: return` above the call
    return first_without(module, test, otherwise=True)


def _in_loops_by_rank(module: Module) -> Iterator[Claim]:
    """Yield collectives in a loop whose number of rounds depends on the rank: `for i in range(10 + rank)`."""
    counts = [loop.iter for loop in module.nodes(ast.For) if _depends_on_rank(module, loop.iter)]
    # With two of them, `range(rank)` and `range(rank, world)`, the ranks take turns.
    for call in collectives(module) if len(counts) == 1 else ():
        if any(isinstance(outer, ast.For) and outer.iter is counts[0] for outer in module.outline.above(call)):
            because = module.claim("checkpoint_guard", "a different number of steps", counts[0], condition="")
            yield module.claim("collective_in_rank_loop", True, call, because=(because,))


def _depends_on_rank(module: Module, count: ast.expr) -> bool:
    """Return whether `count` is a range whose bounds contain the rank."""
    if not isinstance(count, ast.Call) or end_of(count.func) != "range":
        return False
    nodes = [node for bound in count.args[:2] for node in ast.walk(bound)]
    return any(isinstance(node, ast.expr) and is_rank(module, node) for node in nodes) and len(count.args) < 3


def _orders_in_branches(module: Module) -> Iterator[Claim]:
    """Yield a condition on the rank whose two branches make different collectives, one after the other."""
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
    """Return the collectives that a branch certainly makes; empty if a call in it may make another."""
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
    """Yield `if trainer.is_world_process_zero(): trainer.save_model()`, which gathers a sharded model from all
    ranks.
    """
    trainers = {module.bound_to(call) for call in module.calls if last(module.called(call)).endswith("Trainer")} - {""}
    for call in module.named("save_model") if trainers else ():
        if dotted(call.func.value if isinstance(call.func, ast.Attribute) else None) not in trainers:
            continue
        guard_of = ranks_of(module).inside(call)
        if guard_of.test is None or guard_of.who not in _FIRST_RANKS:
            continue
        guard = module.claim("checkpoint_guard", guard_of.who.value, guard_of.test, condition="")
        yield module.claim("guarded_trainer_save", guard_of.who.value, call, because=(guard,), condition="")


def comes_round(test: ast.expr) -> bool:
    """Return whether `test` is periodically true on every rank: `step % 100 == 0`, or Accelerate's `sync_gradients`."""
    if isinstance(test, ast.Attribute) and test.attr == "sync_gradients":
        return True
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.BinOp) and isinstance(test.left.op, ast.Mod)


def _has_counterpart(module: Module, call: ast.Call) -> bool:
    """Return whether another branch of a condition around a call may contain the counterpart for the other ranks."""
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


def is_met_in_loop(tree: ast.AST, call: ast.Call, test: ast.expr) -> bool:
    """Return whether the loop around a condition makes the same call outside the condition, where the other ranks
    arrive next.
    """
    holds = [loop for loop in ast.walk(tree) if isinstance(loop, (ast.For, ast.While)) and call in ast.walk(loop)]
    guarded = [node for loop in holds[-1:] for node in ast.walk(loop) if isinstance(node, ast.If) and node.test is test]
    inside = {node for each in guarded for node in ast.walk(each)}
    others = [node for loop in holds[-1:] for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return call in inside and any(other not in inside and ast.dump(other) == ast.dump(call) for other in others)


def _collectives_in_finally(module: Module) -> Iterator[Claim]:
    """Yield `finally: destroy_process_group()`, or a barrier there, reached when the rank has failed."""
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
        function = module.outline.function_of(call)
        if function is not None and _is_of_own_process(module, function.name):
            continue
        place = _on_failure(module, call)
        if place is not None:
            yield module.claim("group_left_on_failure", short, place, condition="")
            continue
        if function is not None and module.outline.function_of(function) is None:
            wrappers.setdefault(function.name, short)
    for name, short in wrappers.items():
        for caller in module.outline.calls_named(name):
            place = _on_failure(module, caller)
            if place is not None:
                yield module.claim("group_left_on_failure", short, place, condition="")


def _is_of_own_process(module: Module, name: str) -> bool:
    """Return whether a function is what a process that the ranks start runs: `Process(target=save)`."""
    given = (argument(call, "target", 1) for call in module.named("Process", "Thread"))
    return any(each is not None and end_of(value_of(each)) == name for each in given)


def _on_failure(module: Module, call: ast.Call) -> ast.AST | None:
    """Return the call itself, if it is in the `finally` or `except` of a `try` that trains."""
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
    """Return whether the statement follows a `try` that trains and whose handler swallows any error."""
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
    """Return whether the statements do more than close resources."""
    calls = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    names = {end_of(call.func) for call in calls}
    return bool(names - {"barrier", "destroy_process_group", "synchronize", "print", "info", "close", "is_initialized"})


_Loop: TypeAlias = "ast.For | ast.While | ast.AsyncFor"
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
#: Without one of these words a script trains on one rank.
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|Accelerator\b|accelerator\.backward|fabric\.backward"
    r"|horovod|deepspeed|init_process_group|init_parallel_env|DDPStrategy"
)
#: Calls that make all ranks agree on a value, by their last names.
AGREEING = pattern("agreeing")
#: Failures that affect one rank alone: out of memory, a bad sample, a lost connection.
_FAILURES = frozenset(("Exception", "BaseException", "RuntimeError", "OutOfMemoryError", "ValueError"))


def swallowed_failures(module: Module) -> Iterator[Claim]:
    """Yield handlers that continue a loop after a step has failed on this rank alone."""
    if not module.nodes(ast.ExceptHandler) or _DISTRIBUTED.search(module.file.text) is None:
        return
    steps = [*module.named("backward"), *collectives(module)]
    functions = {module.outline.function_of(call) for call in module.named("backward")}
    for function in functions:
        calls = module.outline.calls_named(function.name) if function is not None else ()
        steps += [call for call in calls if isinstance(call.func, ast.Name)]
    by_try: dict[int, ast.Call] = {}
    for call in steps:
        child: ast.AST = call
        for outer in _in_function(module, call):
            if isinstance(outer, ast.Try) and module.outline.is_guarded(child):
                by_try.setdefault(id(outer), call)
            child = outer
    for handler in module.nodes(ast.ExceptHandler):
        yield from _swallowed_failure(module, handler, by_try)


def _swallowed_failure(module: Module, handler: ast.ExceptHandler, by_try: Mapping[int, ast.Call]) -> Iterator[Claim]:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {end_of(each) if each is not None else "Exception" for each in caught}
    guarded = module.outline.parent(handler)
    if not names & _FAILURES or not isinstance(guarded, ast.Try) or _ends_or_agrees(module, handler):
        return
    step = by_try.get(id(guarded))
    if step is None or not any(isinstance(outer, _LOOPS) for outer in _in_function(module, guarded)):
        return
    if not is_collective(module, step) and not _is_trained(module, step):
        return
    because = module.claim("guarded_collective", "step", step, condition="")
    written = f"except {module.text(handler.type)}" if handler.type is not None else "except"
    yield module.claim("step_failure_swallowed", written, handler, condition="", spelling=written, because=(because,))


def _in_function(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    for outer in module.outline.above(node):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        yield outer


def _ends_or_agrees(module: Module, handler: ast.ExceptHandler) -> bool:
    """Return whether a handler ends the process, re-raises the failure, or lets the ranks agree on it."""
    for node in (each for statement in handler.body for each in ast.walk(statement)):
        if isinstance(node, (ast.Raise, ast.Return, ast.Break)):
            return True
        if isinstance(node, ast.Call):
            name = module.called(node)
            if last(name) in ("exit", "_exit", "abort", "kill", "quit") or is_collective(module, node):
                return True
            if AGREEING.search(last(name)):
                return True
    return False


#: Calls that change weights by gradients.
_CHANGES_WEIGHTS = re.compile(r"step|minimize|apply_gradients|update|optimi[sz]e|train", re.IGNORECASE)


def _is_trained(module: Module, step: ast.Call) -> bool:
    """Return whether weights change by the gradients: what only measures a pass may do so on a model that is not
    wrapped.
    """
    function = module.outline.function_of(step)
    callers = module.outline.calls_named(function.name) if function is not None else ()
    names = [function.name] if function is not None else []
    for around in (function, *map(module.outline.function_of, callers)):
        names += [last(module.called(call)) for call in module.outline.calls_in(around)]
    return any(_CHANGES_WEIGHTS.search(name) for name in names)


_LIBRARIES = ("torch.distributed.", "paddle.distributed.")
#: Sends and receives of MPI that do not return before the other side is there, if what is sent is large, or always.
_MPI_SENDS, _MPI_RECEIVES = ("Send", "Ssend", "ssend"), ("Recv", "recv")
#: Calls with which a rank sends and receives at the same time.
_AT_ONCE = re.compile(r"\b[iI]?(?:[iI]send|[iI]recv|[sS]endrecv\w*|batch_isend_irecv|Bsend|bsend|P2POp)\(")


def exchanges(module: Module) -> Iterator[Claim]:
    """Yield the first pair of a send and a receive that every rank makes in the same order."""
    sends = [call for call in module.named("send", *_MPI_SENDS) if _is_for_all(module, call, "dest", "dst")]
    receives = [call for call in module.named(*_MPI_RECEIVES) if _is_for_all(module, call, "source", "src")]
    for send in sends:
        for receive in receives:
            if _owner(module, send) != _owner(module, receive):
                continue
            first, second = sorted((send, receive), key=lambda call: call.lineno)
            if not _follows(module, first, second):
                continue
            name = last(module.called(send))
            if first is receive:
                yield module.feature("received_before_sent", receive, send)
            elif name != "send" or _owner(module, send) in _LIBRARIES:
                yield module.feature(
                    "sent_large_before_received" if name == "Send" else "sent_before_received", send, receive
                )
            else:
                continue
            return


def _owner(module: Module, call: ast.Call) -> str:
    """Return the library, or the communicator, through which ranks exchange."""
    name = module.called(call)
    library = next((each for each in _LIBRARIES if name.startswith(each)), "")
    return library or (dotted(call.func.value) if isinstance(call.func, ast.Attribute) else "")


def _is_for_all(module: Module, call: ast.Call, *names: str) -> bool:
    """Return whether every rank makes a call, and each with another rank: `(rank + 1) % size`, `rank ^ 1`."""
    owner = _owner(module, call)
    known = owner in _LIBRARIES or ("mpi4py" in module.file.text or re.search(r"comm", owner, re.IGNORECASE))
    given = next((found for name in names if (found := argument(call, name, 1)) is not None), None)
    peer = module.definition(value_of(given)) if given is not None else None
    if not known or not isinstance(peer, ast.BinOp) or ranks_of(module).inside(call).who is not RankSet.ALL:
        return False
    parts = (peer.left, peer.right)
    if isinstance(peer.op, ast.BitXor):
        return any(_is_rank(module, part) for part in parts)
    around = module.definition(peer.left) if isinstance(peer.op, ast.Mod) else peer
    shifted = isinstance(around, ast.BinOp) and isinstance(around.op, (ast.Add, ast.Sub))
    if not shifted or not isinstance(around, ast.BinOp):
        return False
    # `size - 1 - rank` and `1 - rank` are other ranks without a remainder, too.
    sides = [around] if around is not peer else [around.right]
    mirrored = around is not peer or isinstance(around.op, ast.Sub)
    terms = [node for side in sides for node in ast.walk(side) if isinstance(node, (ast.Name, ast.Attribute, ast.Call))]
    return mirrored and any(_is_rank(module, term) for term in terms)


def _is_rank(module: Module, expression: ast.expr) -> bool:
    meant = module.definition(expression)
    owned = module.outline.assigned_once(meant) or meant
    return any(is_rank(module, each) for each in (expression, meant, owned)) and "local" not in end_of(expression)


def _follows(module: Module, first: ast.Call, second: ast.Call) -> bool:
    """Return whether two calls are statements of one block, with nothing between that sends and receives at once."""
    one, other = _statement(module, first), _statement(module, second)
    if one is None or other is None:
        return False
    following = module.outline.following(one)
    index = next((number for number, each in enumerate(following) if each is other), None)
    between = " ".join(module.source(each) for each in following[:index]) if index is not None else ""
    return index is not None and _AT_ONCE.search(between) is None and _AT_ONCE.search(_text_above(module, one)) is None


def _statement(module: Module, call: ast.Call) -> ast.stmt | None:
    parent = module.parent(call)
    if isinstance(parent, ast.Call) and end_of(parent.func) == "wait":
        parent = module.parent(parent)
    return parent if isinstance(parent, (ast.Expr, ast.Assign)) else None


def _text_above(module: Module, statement: ast.stmt) -> str:
    """Return the text of the block before a statement, where a receive may have been posted."""
    before, texts = module.outline.before(statement), []
    while before is not None:
        texts.append(module.source(before))
        before = module.outline.before(before)
    return " ".join(texts)
