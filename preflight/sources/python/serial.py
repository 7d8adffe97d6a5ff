"""Claims about long work that one rank does while all others wait for it at a barrier.

The others wait inside a collective, whose timeout must be longer than that work: an hour of downloading or
preprocessing under a timeout of ten minutes kills the job.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, last

_RANK = re.compile(r"(?:^|_)rank(?:$|_)|^(?:rank|RANK)$|rank$", re.IGNORECASE)
_FIRST = re.compile(r"is_(?:main|master|rank_?0|rank_?zero|local_main|world_process_zero|first)\w*", re.IGNORECASE)
#: Statements that are examined between the two barriers of one rank's work.
_MAX_STATEMENTS = 200
_CONTEXTS = {
    "main_process_first",
    "local_main_process_first",
    "rank_zero_first",
    "torch_distributed_zero_first",
}
_BARRIERS = {"barrier", "wait_for_everyone", "broadcast", "broadcast_object_list", "monitored_barrier"}
#: Calls that take minutes to hours: downloads, unpacking, tokenizing, building indices.
_LONG = re.compile(
    r"(?:snapshot_|hf_hub_|url|_)?download\w*|urlretrieve|load_dataset|map|extractall|pre_?process(?:_data\w*|ing\w*)?"
    r"|tokeni[sz]e(?:_\w+)?|prepare_data\w*|process_data\w*|build_(?:index|vocab|dataset)\w*|convert_\w+",
)
#: Names that are quick functions when they are not methods.
_QUICK = {"map"}


def claims(module: Module) -> Iterator[Claim]:
    """All claims about serial work."""
    blocks_with: list[ast.With | ast.AsyncWith] = [*module.nodes(ast.With), *module.nodes(ast.AsyncWith)]
    for block in blocks_with:
        contexts = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
        if any(last(module.called(context)) in _CONTEXTS for context in contexts):
            yield from _long_calls(module, block.body)
    barriers = module.named(*sorted(_BARRIERS))
    if not barriers:
        return
    blocks = _Blocks(module, barriers)
    for node in module.nodes(ast.If):
        if _is_first_rank(module, node.test) and blocks.wait_later(node):
            yield from _long_calls(module, node.body)
        elif _is_other_ranks(module, node.test) and blocks.contain_barrier(node.body):
            yield from _long_calls(module, blocks.work_before_release(node))


def _long_calls(module: Module, statements: list[ast.stmt]) -> Iterator[Claim]:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                name = module.called(node)
                if name not in _QUICK and _LONG.fullmatch(last(name)):
                    yield module.claim("serial_work", module.text(node.func), node)


def _is_first_rank(module: Module, test: ast.expr) -> bool:
    """`rank == 0`, `not rank`, `args.local_rank in (-1, 0)`, `is_main_process()`."""
    if isinstance(test, ast.BoolOp):
        return any(_is_first_rank(module, value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if not _is_rank(module, test.left):
            return False
        right = module.fold(test.comparators[0])
        values = getattr(right, "value", None)
        if isinstance(test.ops[0], ast.Eq):
            return values == 0
        return isinstance(test.ops[0], ast.In) and isinstance(values, tuple) and set(values) == {-1, 0}
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_rank(module, test.operand)
    called = test.func if isinstance(test, ast.Call) else test
    return bool(_FIRST.fullmatch(_end(called)))


def _is_other_ranks(module: Module, test: ast.expr) -> bool:
    """`rank != 0`, `rank > 0`, `local_rank not in (-1, 0)`, `not is_main_process()`."""
    if isinstance(test, ast.BoolOp):
        return any(_is_other_ranks(module, value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _is_rank(module, test.left) and isinstance(test.ops[0], (ast.NotEq, ast.Gt, ast.NotIn))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        called = test.operand.func if isinstance(test.operand, ast.Call) else test.operand
        return bool(_FIRST.fullmatch(_end(called)))
    return False


def _is_rank(module: Module, expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call):
        expression = expression.func
    return bool(_RANK.search(_end(expression)))


def _end(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


class _Blocks:
    """The statements that contain a barrier, and the order of statements; computed once, so that the analysis stays
    linear.
    """

    def __init__(self, module: Module, barriers: list[ast.Call]) -> None:
        self._module = module
        self._holding: set[int] = set()
        self._places: dict[int, tuple[list[ast.stmt], int]] = {}
        self._last_barrier: dict[int, int] = {}
        for call in barriers:
            self._mark_ancestors(call)
        for branch in module.nodes(ast.If):
            # Only blocks with an `if` are needed.
            parent = module.parent(branch)
            for block in ("body", "orelse", "finalbody"):
                statements = getattr(parent, block, None)
                if isinstance(statements, list) and statements and id(statements[0]) not in self._places:
                    self._place(statements)

    def _mark_ancestors(self, node: ast.AST) -> None:
        at: ast.AST | None = node
        while at is not None and id(at) not in self._holding:
            self._holding.add(id(at))
            at = self._module.parent(at)

    def _place(self, statements: list[ast.stmt]) -> None:
        for index, statement in enumerate(statements):
            self._places[id(statement)] = (statements, index)
            if id(statement) in self._holding:
                self._last_barrier[id(statements)] = index

    def contain_barrier(self, statements: list[ast.stmt]) -> bool:
        """Whether one of these contains a barrier."""
        return any(id(statement) in self._holding for statement in statements)

    def wait_later(self, node: ast.If) -> bool:
        """Whether the other ranks reach a barrier: in the other branch, later, or at the end of this one."""
        statements, index = self._places.get(id(node), ([], 0))
        is_after = self._last_barrier.get(id(statements), -1) > index
        return is_after or self.contain_barrier(node.orelse) or self.contain_barrier(node.body[-1:])

    def work_before_release(self, node: ast.If) -> list[ast.stmt]:
        """The work of the first rank between `if rank != 0: barrier()` and the `if rank == 0: barrier()` after it."""
        statements, index = self._places.get(id(node), ([], 0))
        for end in range(index + 1, min(len(statements), index + 1 + _MAX_STATEMENTS)):
            statement = statements[end]
            if isinstance(statement, ast.If) and self.contain_barrier(statement.body):
                if _is_first_rank(self._module, statement.test):
                    return statements[index + 1 : end]
                return []
        return []
