"""Names under which all ranks meet, and that contain the rank, so that each rank waits under a name of its own.

Sources: horovod/common/controller.cc of 0.28 (tensors are exchanged by their names); byteps/torch/ops.py of 0.2.5;
torch/distributed/rendezvous.py of 2.13; jax/_src/distributed.py of 0.7; ray/util/collective/collective.py of 2.48.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Known
from preflight.sources.python.module import SPAWNS, Module, argument, value_of
from preflight.sources.python.outline import Function, dotted
from preflight.sources.python.rank_conditions import RankSet, is_local, is_rank, ranks_of

_FEATURE = "name_of_rank"
_ADDRESS = "address_of_rank"
#: Definitions are followed to this depth.
_MAX_DEPTH = 4


class _Call(NamedTuple):
    """A call in which the ranks find each other.

    Args:
        package: how the full name of what is called begins.
        arguments: the names that all ranks must give alike, each with its position or None.
        feature: what is stated where one of them contains the rank.
        local: whether the rank of a node is wrong in it, too.
        alone: arguments with which the ranks are others than those of the job.
    """

    package: str
    arguments: dict[str, int | None]
    feature: str = _ADDRESS
    local: bool = False
    alone: tuple[str, ...] = ()


_NAMED = _Call("horovod.", {"name": None}, _FEATURE, True, ("process_set",))
_PUSHED = _Call("byteps.", {"name": None}, _FEATURE, True)
_EXCHANGES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "sparse_allreduce")
_CALLS: dict[str, tuple[_Call, ...]] = {
    **{
        f"{grouped}{name}{way}": (_NAMED,)
        for name in _EXCHANGES
        for grouped in ("", "grouped_")
        for way in ("", "_", "_async", "_async_")
    },
    **dict.fromkeys(("broadcast_object", "allgather_object"), (_NAMED,)),
    **{f"push_pull{way}": (_PUSHED,) for way in ("", "_inplace", "_async", "_async_inplace")},
    "init_process_group": (_Call("torch.", {"init_method": 1}),),
    "FileStore": (_Call("torch.", {"file_name": 0}),),
    "TCPStore": (_Call("torch.", {"host_name": 0, "port": 1}),),
    "init_rpc": (_Call("paddle.", {"master_endpoint": 3}),),
    "initialize": (_Call("jax.distributed.", {"coordinator_address": 0}),),
    "init_collective_group": (_Call("ray.util.collective", {"group_name": 3}, _FEATURE),),
}
#: Variables by which the ranks find each other.
_VARIABLES = (Known("MASTER_PORT"), Known("MASTER_ADDR"), Known("COORDINATOR_ADDRESS"), Known("PADDLE_MASTER"))


def claims(module: Module) -> Iterator[Claim]:
    """The first such name of each call, and the first such address in a variable."""
    for call in module.named(*(name for name in _CALLS if name in module.by_name)):
        for row in _CALLS[module.called(call).rpartition(".")[2]]:
            if module.called(call).startswith(row.package) and not _is_apart(module, call, row):
                yield from _of_call(module, call, row)
    for node in module.nodes(ast.Assign) if _joins_all(module) else ():
        target = node.targets[0]
        named = isinstance(target, ast.Subscript) and module.name(target.value) == "os.environ"
        if not named or not isinstance(target, ast.Subscript) or module.fold(target.slice) not in _VARIABLES:
            continue
        own = _Names(module, module.outline.function_of(node), _Call("", {}))
        if _is_of_all(module, node) and own.differ(node.value):
            yield module.feature(_ADDRESS, node)


def _of_call(module: Module, call: ast.Call, row: _Call) -> Iterator[Claim]:
    own = _Names(module, module.outline.function_of(call), row)
    for name, position in row.arguments.items():
        given = argument(call, name, position)
        if given is not None and _is_of_all(module, call) and own.differ(value_of(given)):
            yield module.feature(row.feature, given)
            return


def _is_of_all(module: Module, node: ast.AST) -> bool:
    return ranks_of(module).inside(node).who is RankSet.ALL


def _is_apart(module: Module, call: ast.Call, row: _Call) -> bool:
    """Whether a call joins a group of one rank, or of ranks that it chooses."""
    size = argument(call, "world_size")
    alone = size is not None and module.fold(value_of(size)) == Known(1)
    return alone or any(argument(call, name) is not None for name in row.alone)


#: Engines that make a group of their own in each rank.
_ENGINES = re.compile(r"\bvllm\b|\bsglang\b|lmdeploy")


def _joins_all(module: Module) -> bool:
    """Whether the script itself joins the ranks, and no group of one rank."""
    sizes = [argument(call, "world_size", 3) for call in module.named("init_process_group")]
    ones = (size is not None and module.fold(value_of(size)) == Known(1) for size in sizes)
    return bool(sizes) and not any(ones) and _ENGINES.search(module.file.text) is None


class _Names:
    """Whether expressions of a function are texts or numbers that no two ranks have alike."""

    def __init__(self, module: Module, function: Function | None, row: _Call) -> None:
        self._module = module
        self._row = row
        #: The variables that the function itself passes on as the rank.
        calls = module.outline.calls_in(function)
        given = [argument(call, "rank", 4) for call in calls if module.called(call).endswith("init_process_group")]
        given += [argument(call, "rank", 1) for call in calls if "init_collective_group" in module.called(call)]
        self._ranks = {dotted(value_of(each)) for each in given if each is not None} - {""}
        spawns = [argument(call, "fn", 0) for call in module.calls if module.called(call) in SPAWNS]
        started = {dotted(value_of(each)) for each in spawns if each is not None}
        if function is not None and function.name in started and function.args.args:
            self._ranks.add(function.args.args[0].arg)

    def differ(self, expression: ast.expr, depth: int = 0) -> bool:
        """Whether the value certainly contains the rank."""
        if depth > _MAX_DEPTH:
            return False
        parts: list[ast.expr] = []
        if isinstance(expression, (ast.Name, ast.Attribute)):
            if dotted(expression) in self._ranks:
                return True
            meant = self._module.definition(expression)
            if meant is expression:
                meant = self._module.outline.assigned_once(expression) or expression
            parts = [meant] if meant is not expression else []
        elif isinstance(expression, ast.Subscript):
            return is_rank(self._module, expression) and self._counts(expression)
        elif isinstance(expression, ast.Call):
            name = self._module.called(expression)
            if is_rank(self._module, expression) and not expression.args:
                return self._counts(expression)
            if name in ("str", "int", "repr"):
                parts = expression.args
            elif name.endswith((".format", ".join")) and isinstance(expression.func, ast.Attribute):
                parts = [*expression.args, *(each.value for each in expression.keywords)]
            elif is_rank(self._module, expression):
                return self._counts(expression)
        elif isinstance(expression, ast.JoinedStr):
            parts = [each.value for each in expression.values if isinstance(each, ast.FormattedValue)]
        elif isinstance(expression, (ast.Tuple, ast.List)):
            parts = expression.elts
        elif isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Add, ast.Sub)):
            parts = [expression.left, expression.right]
        elif isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mod):
            left = self._module.definition(expression.left)
            is_text = isinstance(left, ast.JoinedStr) or (
                isinstance(left, ast.Constant) and isinstance(left.value, str)
            )
            parts = [expression.right] if is_text else []
        return any(self.differ(part, depth + 1) for part in parts)

    def _counts(self, rank: ast.expr) -> bool:
        return self._row.local or not is_local(self._module, rank)
