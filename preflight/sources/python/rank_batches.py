"""Claims about batch sizes that differ between the ranks of one script."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from preflight.model.job import Claim, alternatives
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.rank_conditions import RankSet, is_rank, ranks_where_true

#: Position of `batch_size` among the arguments, by the last name of the call; None: by keyword only.
_BATCHING: dict[str, int | None] = {
    "DataLoader": 1,
    "DistributedBatchSampler": 1,
    "BatchSampler": None,
    "batch": 1,
    "init": None,
    "set_batch_size": 0,
}
_ALIKE = (RankSet.ALL, RankSet.UNDECIDED)
#: A choice within a choice is followed to this depth.
_MAX_DEPTH = 4


def claims(module: Module) -> Iterator[Claim]:
    """Each batch size that is computed from the rank: by a conditional on it, or by arithmetic with it."""
    for call in module.named(*_BATCHING):
        given = argument(call, "batch_size", _BATCHING[last(module.called(call))])
        if given is None:
            continue
        size = module.definition(value_of(given))
        if _is_by_rank(module, size):
            yield module.claim("batch_size_of_rank", module.text(size), given)


def _is_by_rank(module: Module, size: ast.expr, depth: int = 0) -> bool:
    """Whether ranks certainly get different numbers."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(size, ast.IfExp):
        return _is_choice(module, size)
    if isinstance(size, ast.BinOp):
        return _is_arithmetic(module, size, depth)
    if isinstance(size, ast.Name):
        return _is_assigned_by_rank(module, size)
    if isinstance(size, ast.Subscript):
        return is_rank(module, size.slice) and _has_different(module, module.definition(size.value))
    if isinstance(size, ast.Call):
        return _is_returned_by_rank(module, size)
    return False


def _is_choice(module: Module, size: ast.IfExp) -> bool:
    """Whether this is `64 if rank == 0 else 32`: two different numbers."""
    if ranks_where_true(module, size.test) in _ALIKE:
        return False
    return _are_different(module, [size.body, size.orelse])


def _are_different(module: Module, sizes: Sequence[ast.expr]) -> bool:
    """Whether these are known numbers, not all of them equal."""
    numbers = [alternatives(module.fold(size)) for size in sizes]
    return len(numbers) > 1 and all(len(found) == 1 for found in numbers) and len(set(numbers)) > 1


def _is_arithmetic(module: Module, size: ast.BinOp, depth: int) -> bool:
    """Whether this is a sum or product with the rank in it, such as `32 * (1 + fleet.worker_index())`."""
    if not isinstance(size.op, (ast.Mult, ast.Add)):
        return False
    parts = [module.definition(part) for part in (size.left, size.right)]
    return any(is_rank(module, part) or _is_by_rank(module, part, depth + 1) for part in parts)


def _is_assigned_by_rank(module: Module, name: ast.Name) -> bool:
    """Whether `if rank == 0: size = 64` and another assignment in the same function give the variable its value."""
    function = module.outline.function_of(name)
    given = [
        node
        for node in module.nodes(ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
        and module.outline.function_of(node) is function
    ]
    guarded = [node for node in given if _is_under_rank(module, node)]
    return bool(guarded) and _are_different(module, [node.value for node in given])


def _is_under_rank(module: Module, node: ast.AST) -> bool:
    """Whether the innermost branch around a node depends on the rank."""
    for outer in module.outline.above(node):
        if isinstance(outer, ast.If):
            return ranks_where_true(module, outer.test) not in _ALIKE
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False


def _is_returned_by_rank(module: Module, call: ast.Call) -> bool:
    """Whether a table is asked for the rank's entry, or a function of the script returns a number by rank."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args and is_rank(module, call.args[0]):
        table = module.definition(call.func.value)
        return _has_different(module, table, call.args[1:2])
    functions = module.outline.functions(call.func.id) if isinstance(call.func, ast.Name) else ()
    if len(functions) != 1:
        return False
    returns = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Return) and node.value is not None]
    values = [node.value for node in returns if node.value is not None]
    if len(values) == 1:
        return isinstance(values[0], ast.IfExp) and _is_choice(module, values[0])
    return any(_is_under_rank(module, node) for node in returns) and _are_different(module, values)


def _has_different(module: Module, table: ast.expr, others: Sequence[ast.expr] = ()) -> bool:
    """Whether a literal list or dictionary has different numbers."""
    if isinstance(table, ast.Dict):
        return _are_different(module, [*table.values, *others])
    return isinstance(table, (ast.List, ast.Tuple)) and _are_different(module, table.elts)
