"""Determines the ranks for which a condition is true, and the ranks that run a part of a script.

`rank == 0` is true for one rank of the job, `local_rank == 0` for one rank on every node. Anything uncertain is
`UNDECIDED`, which no reader treats as either.
"""

from __future__ import annotations

import ast
import enum
import functools
import re
from typing import Any, NamedTuple

from preflight._util.budget import spend
from preflight.sources.conditions import COMPARE
from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import Function, end_of


class RankSet(enum.Enum):
    """The ranks that run something."""

    ALL = "every rank"
    FIRST = "rank 0"
    LOCAL_FIRST = "the first rank of every node"
    OTHERS = "every rank but the first"
    LOCAL_OTHERS = "every rank but the first of its node"
    SOME = "some ranks"
    UNDECIDED = "unknown"


#: Definitions are followed to this depth.
_MAX_DEPTH = 5
_RANK = re.compile(
    # Anchored, because a search would begin anew at every character of a long name.
    r"\A(?:(?:get_|_)*(?:(?:global|local|world|proc|process|my|this|cur|current|worker|dist|ddp|distributed|mpi|hvd|comm"
    r"|env|torch|gpu|slurm|trainer)_?)*rank_?(?:id|idx)?_?|(?:local_)?process_index|SLURM_(?:PROCID|LOCALID)|procid"
    r"|trainer_id|worker_index|task_(?:id|index)|(?:OMPI_COMM_WORLD|PMI|MV2_COMM_WORLD)_(?:LOCAL_)?RANK)",
    re.IGNORECASE,
)
_LOCAL_RANK = re.compile(r"local_?(?:rank|process_index)|SLURM_LOCALID", re.IGNORECASE)
_NODE_RANK = re.compile(r"(?:node|machine|group)_?(?:rank|id)|SLURM_NODEID", re.IGNORECASE)
_FIRST = re.compile(
    r"_*(?:is|on|am)_?(?:(?:main|master|primary|chief|root|leader)(?:_?(?:process|rank|worker|proc|node))?"
    r"|rank_?(?:0|zero)|world_process_zero|global_zero|first_(?:rank|process|worker))"
    r"|(?:main|master|primary|chief)_(?:process|rank|worker|proc)",
    re.IGNORECASE,
)
_LOCAL_FIRST = re.compile(
    r"_*(?:is_)?local_(?:main|master|primary|first)(?:_process|_rank)?|_*is_local_(?:process_zero|rank_?(?:0|zero))",
    re.IGNORECASE,
)
#: A rank of another kind in a comparison.
_OTHER_RANKS = re.compile(
    r"rank|SLURM_NODEID|(?:node|machine|group|process|worker)_?(?:id|index)|procid|gpu|device|local", re.IGNORECASE
)
#: Whether there are several ranks at all, which is the same for each of them.
_IS_DISTRIBUTED = re.compile(
    r"(?:is_|use_|multiprocessing_)?(?:dist|distributed|ddp|fsdp|multi_gpu)(?:_run|_training|_mode)?|is_initialized"
    r"|is_dist_avail_and_initialized|is_available|is_distributed",
    re.IGNORECASE,
)
#: Words in a condition that may denote a rank in an unknown way.
_RANK_WORDS = re.compile(
    r"rank|main|master|primary|zero|leader|chief|proc|first|dist|local|gpu|device|root|worker|node|host|world|save|log",
    re.IGNORECASE,
)
_COMPLEMENTS = {
    RankSet.FIRST: RankSet.OTHERS,
    RankSet.OTHERS: RankSet.FIRST,
    RankSet.LOCAL_FIRST: RankSet.LOCAL_OTHERS,
    RankSet.LOCAL_OTHERS: RankSet.LOCAL_FIRST,
}


ORDER = (
    RankSet.FIRST,
    RankSet.LOCAL_FIRST,
    RankSet.OTHERS,
    RankSet.LOCAL_OTHERS,
    RankSet.SOME,
    RankSet.UNDECIDED,
    RankSet.ALL,
)


#: Words of a condition that asks how the model is divided among ranks.
_DIVIDES = re.compile(r"distributed_type|deepspeed|fsdp|zero_?stage|shard", re.IGNORECASE)


def ranks_where_true(module: Module, test: ast.expr, depth: int = 0) -> RankSet:
    """Return the ranks for which a condition is true. `ALL`: it does not depend on ranks."""
    if depth > _MAX_DEPTH:
        return RankSet.UNDECIDED
    if isinstance(test, ast.BoolOp):
        parts = [ranks_where_true(module, value, depth + 1) for value in test.values]
        return _all_of(test, parts) if isinstance(test.op, ast.And) else _any_of(module, test, parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ranks_where_false(module, test.operand, depth + 1)
    if isinstance(test, ast.Compare):
        return _evaluate_comparison(module, test)
    if variable_read(module, test) is not None:
        # Whether a launcher has set it; the text "0" is as true as any other.
        return RankSet.ALL
    meant = module.definition(test) if isinstance(test, ast.Name) else test
    if isinstance(meant, (ast.Compare, ast.BoolOp)) and meant is not test:
        # `global_rank = get_rank() == 0` is no rank.
        return ranks_where_true(module, meant, depth + 1)
    if is_rank(module, test):
        return complement(_first_of(module, test))
    return _evaluate_name(module, test, depth)


#: Questions about whether there are several ranks.
_ASKS_FOR_RANKS = re.compile(
    r"\bdist\b|dist_|_dist\b|distributed|ddp|world_?size|initiali[sz]ed|parallel|multi_?gpu|num_?proc|n_?gpu",
    re.IGNORECASE,
)


def ranks_where_false(module: Module, test: ast.expr, depth: int = 0) -> RankSet:
    """Return the ranks for which a condition is false.

    `a and rank != 0` is false for every rank where `a` is, unless `a` asks whether there are several ranks at all.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        open_ranks = (RankSet.ALL, RankSet.UNDECIDED)
        apart = [part for part in test.values if ranks_where_true(module, part, depth + 1) in open_ranks]
        if not all(_ASKS_FOR_RANKS.search(module.text(part)) for part in apart):
            return RankSet.UNDECIDED
    return complement(ranks_where_true(module, test, depth))


#: Ranks for which a condition is tried.
_TRIED = 64


def first_without(module: Module, test: ast.expr, *, otherwise: bool) -> int | None:
    """Return the lowest rank of the job for which a condition is false, or true for `otherwise`; None if that is not
    known.
    """
    return next((rank for rank in range(_TRIED) if _truth(module, test, rank) is otherwise), None)


def _truth(module: Module, test: ast.expr, rank: int) -> bool | None:
    """Return whether a condition is true on a rank; None if it does not depend on the rank alone."""
    if isinstance(test, ast.BoolOp):
        parts = [_truth(module, part, rank) for part in test.values]
        deciding = isinstance(test.op, ast.Or)
        return deciding if deciding in parts else None if None in parts else not deciding
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(module, test.operand, rank)
        return None if inner is None else not inner
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in COMPARE:
        return None
    left, right = (_number(module, side, rank) for side in (test.left, test.comparators[0]))
    try:
        return None if left is None or right is None else COMPARE[type(test.ops[0])](left, right)
    except TypeError:
        return None


def _number(module: Module, expression: ast.expr, rank: int) -> Any:
    """Return the value of a side of a comparison on a rank of the job; None if it is not known."""
    if is_rank(module, expression):
        return None if is_local(module, expression) else rank
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Mod, ast.FloorDiv)):
        left, right = (_number(module, side, rank) for side in (expression.left, expression.right))
        if not isinstance(left, int) or not isinstance(right, int) or right == 0:
            return None
        return left % right if isinstance(expression.op, ast.Mod) else left // right
    return getattr(module.fold(expression), "value", None)


def complement(who: RankSet) -> RankSet:
    """Return the ranks for which the opposite of a condition is true."""
    return _COMPLEMENTS.get(who, who)


def _all_of(test: ast.BoolOp, parts: list[RankSet]) -> RankSet:
    if RankSet.FIRST in parts:
        return RankSet.FIRST
    if RankSet.LOCAL_FIRST in parts:
        names = {name for value in test.values for name in _names(value)}
        # `local_rank == 0 and node_rank == 0` is one rank of the job.
        return RankSet.FIRST if any(_NODE_RANK.search(name) for name in names) else RankSet.LOCAL_FIRST
    return next((who for who in ORDER if who in parts), RankSet.ALL)


def _any_of(module: Module, test: ast.BoolOp, parts: list[RankSet]) -> RankSet:
    about_ranks = [who for who in parts if who is not RankSet.ALL]
    if not about_ranks:
        return RankSet.ALL
    others = [value for value, who in zip(test.values, parts, strict=True) if who is RankSet.ALL]
    if any(_DIVIDES.search(module.source(value)) for value in others):
        # `is_deepspeed or is_main_process`: every rank where the model is divided, else one, which holds all of it.
        return RankSet.UNDECIDED
    # `not distributed or rank == 0`: the part that is not about ranks concerns a run with one of them.
    return about_ranks[0] if len(set(about_ranks)) == 1 else RankSet.UNDECIDED


def _evaluate_comparison(module: Module, test: ast.Compare) -> RankSet:
    if len(test.ops) != 1:
        return _undecided_ranks(test)
    left, right, operator = test.left, test.comparators[0], test.ops[0]
    if not is_rank(module, left) and is_rank(module, right) and isinstance(operator, (ast.Eq, ast.NotEq)):
        left, right = right, left
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and is_rank(module, left.left):
        # `rank % gpus_per_node == 0`: one rank of every node.
        each = any(re.search(r"gpu|device|local|per_node", name, re.I) for name in _names(left.right))
        zero = getattr(module.fold(right), "value", None) == 0
        return RankSet.LOCAL_FIRST if each and zero and isinstance(operator, ast.Eq) else RankSet.SOME
    if not is_rank(module, left):
        return _undecided_ranks(test)
    values = getattr(module.fold(right), "value", None)
    first = _first_of(module, left)
    if values == "0":
        # `os.environ["RANK"] == "0"`
        values = 0
    if isinstance(operator, ast.Eq):
        return first if values == 0 and values is not False else RankSet.SOME
    if isinstance(operator, (ast.NotEq, ast.Gt)):
        return complement(first) if values == 0 else RankSet.SOME
    if isinstance(operator, (ast.In, ast.NotIn)):
        if isinstance(values, tuple) and values and set(values) <= {-1, 0}:
            return first if isinstance(operator, ast.In) else complement(first)
        return RankSet.SOME
    if isinstance(operator, (ast.LtE, ast.Lt)) and values in (0, 1):
        if isinstance(operator, ast.LtE) == (values == 0):
            return first
        # `rank < 0`: not a distributed run at all.
        return RankSet.ALL if values == 0 else RankSet.SOME
    if isinstance(operator, ast.Is) and values is None:
        return RankSet.ALL
    return RankSet.SOME


def _undecided_ranks(test: ast.expr) -> RankSet:
    return RankSet.UNDECIDED if any(_OTHER_RANKS.search(name) for name in _names(test)) else RankSet.ALL


def _evaluate_name(module: Module, test: ast.expr, depth: int) -> RankSet:
    """Return `is_main`, `is_main_process()`, `self.is_master`: judging by its assignment or return value, otherwise by
    its name.
    """
    called = test.func if isinstance(test, ast.Call) else test
    name = end_of(called)
    if isinstance(called, ast.Name) and called is test:
        meant = module.definition(called)
        if meant is not called:
            return ranks_where_true(module, meant, depth + 1)
    if isinstance(test, ast.Call):
        found = [returned for function in module.outline.functions(name) for returned in _returned_expression(function)]
        if len(found) == 1:
            who = ranks_where_true(module, found[0], depth + 1)
            if who is not RankSet.ALL:
                return who
        if isinstance(test.func, ast.Name) and test.func.id in ("bool", "any", "all") and len(test.args) == 1:
            return ranks_where_true(module, test.args[0], depth + 1)
    if _LOCAL_FIRST.fullmatch(name):
        return RankSet.LOCAL_FIRST
    if _FIRST.fullmatch(name):
        return RankSet.FIRST
    if _IS_DISTRIBUTED.fullmatch(name):
        return RankSet.ALL
    return RankSet.UNDECIDED if any(_RANK_WORDS.search(each) for each in _names(test)) else RankSet.ALL


def _returned_expression(function: Function) -> list[ast.expr]:
    return [node.value for node in function.body if isinstance(node, ast.Return) and node.value is not None]


def is_rank(module: Module, expression: ast.expr) -> bool:
    """Return whether an expression is a rank: `rank`, `args.local_rank`, `dist.get_rank()`,
    `int(os.environ["RANK"])`.
    """
    if isinstance(expression, ast.Call):
        if end_of(expression.func) in ("int", "str") and len(expression.args) == 1:
            return is_rank(module, expression.args[0])
        variable = variable_read(module, expression)
        return bool(_RANK.fullmatch(variable or end_of(expression.func)))
    if isinstance(expression, ast.Subscript):
        variable = variable_read(module, expression)
        return bool(variable and _RANK.fullmatch(variable))
    return bool(_RANK.fullmatch(end_of(expression))) or _is_spawned_index(module, expression)


def is_of_rank(module: Module, expression: ast.expr, depth: int = 0) -> bool:
    """Return whether a rank is in an expression, or in what its names are assigned once."""
    for node in ast.walk(expression):
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            continue
        made = module.outline.assigned_once(node) or module.definition(node)
        if is_rank(module, node) or (made is not node and depth < _MAX_DEPTH and is_of_rank(module, made, depth + 1)):
            return True
    return False


def _is_spawned_index(module: Module, expression: ast.expr) -> bool:
    """Return whether a name is the first parameter of a function that `mp.spawn` runs, which is the index of its
    process.
    """
    if not isinstance(expression, ast.Name) or "spawn" not in module.by_name:
        return False
    function = module.outline.function_of(expression)
    if function is None or not function.args.args or function.args.args[0].arg != expression.id:
        return False
    return any(
        call.args and isinstance(call.args[0], ast.Name) and call.args[0].id == function.name
        for call in module.by_name["spawn"]
        if "multiprocessing" in module.called(call)
    )


def _first_of(module: Module, rank: ast.expr) -> RankSet:
    return RankSet.LOCAL_FIRST if is_local(module, rank) else RankSet.FIRST


def is_local(module: Module, rank: ast.expr, depth: int = 0) -> bool:
    """Return whether a rank counts from 0 on every node: judging by its assignment, otherwise by its name."""
    meant = module.definition(rank) if isinstance(rank, ast.Name) else rank
    if isinstance(meant, ast.Attribute) and _is_of_job(module, meant.value):
        return False
    if isinstance(meant, (ast.Name, ast.Attribute)):
        assigned = module.outline.assigned_once(meant)
        if assigned is not None and depth < _MAX_DEPTH and is_rank(module, assigned):
            return is_local(module, assigned, depth + 1)
        return bool(_LOCAL_RANK.search(end_of(meant))) and not _holds_rank_of_job(module, meant)
    if isinstance(meant, ast.Call):
        if end_of(meant.func) in ("int", "str") and len(meant.args) == 1 and depth < _MAX_DEPTH:
            return is_local(module, meant.args[0], depth + 1)
        variable = variable_read(module, meant)
        if variable is not None or _RANK.fullmatch(end_of(meant.func)):
            return bool(_LOCAL_RANK.search(variable or end_of(meant.func)))
    if isinstance(meant, ast.Subscript):
        return bool(_LOCAL_RANK.search(variable_read(module, meant) or ""))
    return bool(_LOCAL_RANK.search(end_of(rank)))


def _holds_rank_of_job(module: Module, name: ast.Name | ast.Attribute) -> bool:
    """Return whether what a script calls local rank is, wherever it is assigned, the rank in the whole job."""
    values = [
        node.value
        for node in module.nodes(ast.Assign)
        if isinstance(name, ast.Name) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name.id
    ]
    calls = [end_of(value.func) if isinstance(value, ast.Call) else "" for value in values]
    return bool(calls) and all(_RANK.fullmatch(each) and not _LOCAL_RANK.search(each) for each in calls)


def _is_of_job(module: Module, owner: ast.expr) -> bool:
    """Return whether `.local_rank` of an object is the rank in the whole job.

    In `ParallelEnv()`, at first `Env()`, it is an old name for it (paddle/distributed/parallel.py).
    """
    if isinstance(owner, ast.Name):
        owner = module.definition(owner)
    elif isinstance(owner, ast.Attribute):
        owner = module.outline.assigned_once(owner) or owner
    return isinstance(owner, ast.Call) and module.called(owner).endswith(("ParallelEnv", ".parallel.Env"))


def variable_read(module: Module, expression: ast.expr) -> str | None:
    """Return the variable that `os.environ["X"]`, `os.environ.get("X", ...)` or `os.getenv("X")` reads."""
    key: ast.expr | None = None
    if isinstance(expression, ast.Subscript) and module.name(expression.value) == "os.environ":
        key = expression.slice
    elif isinstance(expression, ast.Call) and module.called(expression) in ("os.environ.get", "os.getenv"):
        given = argument(expression, "key", 0)
        key = value_of(given) if given is not None else None
    found = getattr(module.fold(key), "value", None) if key is not None else None
    return found if isinstance(found, str) else None


def _names(expression: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(expression):
        if isinstance(node, (ast.Name, ast.Attribute)):
            found.append(end_of(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


#: Calls are followed to this depth.
_MAX_CALLERS = 5
_DECORATORS = re.compile(r"rank_?(?:zero|0)|(?:main|master)_(?:process|only)|on_main|only_main|primary_only", re.I)
_EXITS = ("sys.exit", "exit", "quit", "os._exit")


class RankGuard(NamedTuple):
    """The ranks that run a node, and the test that decides it; None if there is none."""

    who: RankSet
    test: ast.expr | None = None


class Ranks:
    """The ranks that run each node of one script."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._outline = module.outline
        self._functions: dict[int, RankGuard] = {}
        self._inside: dict[int, RankGuard] = {}

    def inside(self, node: ast.AST) -> RankGuard:
        """Return the ranks that run a node, among those that enter its function."""
        # From the outside in, each node once: the branches of a long `elif` are nested.
        passed: list[tuple[ast.AST, ast.AST]] = []
        child, found = node, self._inside.get(id(node))
        while found is None:
            parent = self._outline.parent(child)
            if parent is None or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                found = RankGuard(RankSet.ALL)
                break
            passed.append((child, parent))
            child, found = parent, self._inside.get(id(parent))
        spend(1 + len(passed))
        for child, parent in reversed(passed):
            found = self._inside[id(child)] = _narrower(self._within(child, parent), found)
        return found

    def _within(self, child: ast.AST, parent: ast.AST) -> RankGuard:
        """Return the ranks that run a node, among those that run its parent."""
        found = RankGuard(RankSet.ALL)
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            is_else = self._outline.is_else(child)
            who = (ranks_where_false if is_else else ranks_where_true)(self._module, parent.test)
            found = RankGuard(who, parent.test)
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            for value in parent.values:
                if value is child:
                    break
                found = _narrower(found, RankGuard(ranks_where_true(self._module, value), value))
        return _narrower(found, self._after_exits.get(id(child), RankGuard(RankSet.ALL)))

    def guard_of(self, node: ast.AST) -> RankGuard:
        """Return the ranks that run a node, as far as the calls of its function in this script show."""
        inside = self.inside(node)
        function = self._outline.function_of(node)
        if inside.who is not RankSet.ALL or function is None:
            return inside
        return self._ranks_of_function(function)

    def _ranks_of_function(self, function: Function, depth: int = 0) -> RankGuard:
        key = id(function)
        if key not in self._functions:
            self._functions[key] = RankGuard(RankSet.UNDECIDED)
            if depth <= _MAX_CALLERS:
                self._functions[key] = self._callers(function, depth)
        return self._functions[key]

    def _callers(self, function: Function, depth: int) -> RankGuard:
        by_decorator = decorated(function)
        if by_decorator.test is not None:
            return by_decorator
        found: list[RankGuard] = []
        owner = self._outline.parent(function)
        # Making an object calls it.
        name = owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name
        for call in self._outline.calls_named(name):
            outer = self._outline.function_of(call)
            if outer is function:
                continue
            inside = self.inside(call)
            if inside.who is RankSet.ALL and outer is not None:
                inside = self._ranks_of_function(outer, depth + 1)
            found.append(inside)
        if not found:
            # `mp.spawn(main, ...)` runs it everywhere; the callers of a method or an imported function are unknown.
            return RankGuard(RankSet.ALL if self._outline.is_passed_on(name) else RankSet.UNDECIDED)
        if len({guard_of.who for guard_of in found}) == 1:
            return found[0]
        for who in (RankSet.ALL, RankSet.UNDECIDED):
            for guard_of in found:
                if guard_of.who is who:
                    return guard_of
        return RankGuard(RankSet.UNDECIDED)

    @functools.cached_property
    def _after_exits(self) -> dict[int, RankGuard]:
        """Return statements after `if rank != 0: return`, by id."""
        found: dict[int, RankGuard] = {}
        for branch in self._module.nodes(ast.If):
            if branch.orelse or not _leaves(self._module, branch.body[-1]):
                continue
            who = ranks_where_false(self._module, branch.test)
            if who in (RankSet.ALL, RankSet.UNDECIDED):
                continue
            if who is RankSet.SOME and first_without(self._module, branch.test, otherwise=True) is None:
                continue
            for later in self._outline.following(branch):
                if id(later) in found:
                    break
                found[id(later)] = RankGuard(who, branch.test)
        return found


def decorated(function: Function) -> RankGuard:
    """Return the ranks that run a function according to its decorator (`@rank_zero_only`); every rank without one."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _DECORATORS.search(end_of(called)):
            return RankGuard(RankSet.FIRST, decorator)
    return RankGuard(RankSet.ALL)


@functools.lru_cache(maxsize=1)
def ranks_of(module: Module) -> Ranks:
    """Return the ranks of a script, computed once for all readers of it."""
    return Ranks(module)


def _leaves(module: Module, statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Return, ast.Continue)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and module.called(call) in _EXITS


def _narrower(first: RankGuard, second: RankGuard) -> RankGuard:
    return first if ORDER.index(first.who) <= ORDER.index(second.who) else second
