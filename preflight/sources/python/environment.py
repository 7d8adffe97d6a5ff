"""Claims about the variables that a script sets for itself, requires, or reads of a scheduler, and about names under
which all ranks meet, and that contain the rank.

An assignment in the script takes effect after the launcher and the shell, so it has the strength of a flag;
`setdefault`, and an assignment after `if "X" not in os.environ`, set only a missing value.

Sources: horovod/common/controller.cc of 0.28 (tensors are exchanged by their names); byteps/torch/ops.py of 0.2.5;
torch/distributed/rendezvous.py of 2.13; jax/_src/distributed.py of 0.7; ray/util/collective/collective.py of 2.48.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight._util.redaction import HIDDEN, scrub
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.value import ENVIRONMENT_PREFIX, Plain
from preflight.sources.python.module import SPAWNS, Module, argument, last, value_of
from preflight.sources.python.outline import Function, dotted
from preflight.sources.python.rank_conditions import RankSet, is_local, is_rank, ranks_of, variable_read

_ENVIRON = "os.environ"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
#: One pattern for all names: compiling one for each costs more than everything else that a long script needs.
_UNSET = re.compile(r"""not \(?["'](\w{1,100})["'] in os\.environ|["'](\w{1,100})["'] not in os\.environ""", re.ASCII)


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about `os.environ`."""
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and module.name(target.value) == _ENVIRON:
                yield from _assignment_claims(module, target.slice, node.value, node)
    for call in module.calls:
        yield from _call_claims(module, call)


#: Variables that a package reads while it is imported, by a pattern: paddle/base/__init__.py of 3.3 (FLAGS),
#: huggingface_hub/constants.py of 1.1, datasets/config.py of 4.4.
_READ_AT_IMPORT = (
    (re.compile(r"FLAGS_(?!selected_)\w+"), ("paddle",)),
    (
        re.compile(r"HF_(?!TOKEN)\w+|TRANSFORMERS_(?:CACHE|OFFLINE)|HUGGINGFACE_HUB_CACHE"),
        ("transformers", "datasets", "huggingface_hub", "accelerate", "diffusers", "peft", "trl"),
    ),
)


def late_variables(module: Module) -> Iterator[Claim]:
    """Yield the first variable that the script sets after it has imported the package that reads it at import."""
    imported = [node for node in module.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in module.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Subscript) or module.name(target.value) != _ENVIRON:
            continue
        name = next(iter(_known_values(module.fold(target.slice))), None)
        for pattern, packages in _READ_AT_IMPORT:
            early = next((each for each in imported if each.lineno < node.lineno and _imports(each, packages)), None)
            if pattern.fullmatch(str(name)) and early is not None:
                yield module.feature("variable_set_after_import", node, early)
                return


def _imports(node: ast.Import | ast.ImportFrom, packages: tuple[str, ...]) -> bool:
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(name.partition(".")[0] in packages for name in names)


def _call_claims(module: Module, call: ast.Call) -> Iterator[Claim]:
    name = module.called(call)
    if name == f"{_ENVIRON}.setdefault" and len(call.args) == 2:
        yield from _assignment_claims(module, call.args[0], call.args[1], call, strength=Strength.DEFAULT)
    elif name == "os.putenv" and len(call.args) == 2:
        yield from _assignment_claims(module, call.args[0], call.args[1], call)
    elif name == f"{_ENVIRON}.update":
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield from _assignment_claims(module, ast.Constant(keyword.arg), keyword.value, keyword)
        for given in call.args[:1]:
            table = module.definition(given)
            if isinstance(table, ast.Dict):
                for key, value in zip(table.keys, table.values, strict=True):
                    if key is not None:
                        yield from _assignment_claims(module, key, value, value)


def _assignment_claims(
    module: Module, key: ast.expr, value: ast.expr, at: ast.AST, *, strength: Strength = Strength.FLAG
) -> Iterator[Claim]:
    name = key.value if isinstance(key, ast.Constant) else next(iter(_known_values(module.fold(key))), None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return
    fallback = _fallback(module, name, value)
    if fallback is None and variable_read(module, value) == name:
        # A variable that is given its own value only has to be set.
        return
    if fallback is not None:
        value, strength = fallback, Strength.DEFAULT
    condition = module.condition(at)
    if any(name in match.groups() for match in _UNSET.finditer(condition)):
        strength, condition = Strength.DEFAULT, ""
    claim = module.claim(
        ENVIRONMENT_PREFIX + name,
        lift(_as_text, module.fold(value)),
        at,
        strength=strength,
        condition=condition,
    )
    claim = replace(claim, span=module.span(value))
    yield _without_secret(claim, name) if is_secret(name) else claim


def _fallback(module: Module, name: str, value: ast.expr) -> ast.expr | None:
    """Return the default in `os.environ["X"] = os.environ.get("X", default)`; None for anything else."""
    if (
        isinstance(value, ast.Call)
        and module.called(value) in ("os.environ.get", "os.getenv")
        and len(value.args) == 2
        and isinstance(value.args[0], ast.Constant)
        and value.args[0].value == name
    ):
        return value.args[1]
    return None


def _known_values(value: Value) -> tuple[Plain, ...]:
    found = alternatives(value)
    return found if len(found) == 1 else ()


def _as_text(item: Plain) -> str:
    # Only texts can be assigned; a number would raise TypeError in the script, and is ignored.
    if isinstance(item, str):
        return scrub(item)
    raise TypeError("the value of a variable must be a string")


def _without_secret(claim: Claim, name: str) -> Claim:
    """Return the claim and the snippet of its location without the value."""
    return replace(
        claim,
        value=Unresolved("looks like a secret and is not kept"),
        spelling=f"{name}={HIDDEN}",
        span=replace(claim.span, snippet=""),
    )


_RANKS = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"}
)
#: Variables that people expect a launcher to set for its node; torchrun and its like do not.
_OF_NODES = frozenset({"NODE_RANK", "NNODES", "NUM_NODES", "NODE_ID"})
#: Functions that call functions are followed to this depth.
_MAX_DEPTH = 5
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def required_claims(module: Module) -> Iterator[Claim]:
    """Yield one claim for each variable that a script reads and does not set, at the first location where it is
    read.
    """
    found: dict[str, ast.Subscript] = {}
    needed: dict[str, ast.Subscript] = {}
    for node in module.nodes(ast.Subscript):
        if module.name(node.value) != "os.environ" or not isinstance(node.slice, ast.Constant):
            continue
        name = node.slice.value
        if name not in _RANKS and name not in _OF_NODES:
            if isinstance(name, str) and isinstance(node.ctx, ast.Load) and not module.condition(node):
                needed.setdefault(name, node)
            continue
        if isinstance(node.ctx, ast.Load) and always_reached(module, node):
            found.setdefault(name, node)
    given = given_variables(module) if found or needed else frozenset()
    for name in sorted(set(needed) - given):
        if not is_secret(name) and not any(isinstance(outer, ast.Try) for outer in module.outline.above(needed[name])):
            yield module.claim("needed_variable", name, needed[name])
    for name in sorted(set(found) - given):
        yield module.claim("required_variable" if name in _RANKS else "required_node_variable", name, found[name])


#: Packages that may set the variables of ranks when they are imported: idr_torch of Jean Zay, and what sites have.
_SETTERS = re.compile(r"idr_torch|\w*(?:slurm|site|cluster|hpc|mpi_|dist_|rank)\w*", re.IGNORECASE)
#: Calls that set them from the variables of the scheduler: of deepspeed.comm, and of submitit.
_SETTING_CALLS = ("mpi_discovery", "TorchDistributedEnvironment")


def rank_setters(module: Module) -> Iterator[Claim]:
    """Yield one claim for each call that sets the variables of ranks, and for each package that may set them."""
    for call in module.named(*_SETTING_CALLS):
        yield module.claim("rank_setter", last(module.called(call)), call)
    statements: list[ast.Import | ast.ImportFrom] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    for node in statements:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            if _SETTERS.fullmatch(name.partition(".")[0]):
                yield module.claim("rank_setter", Unresolved(f"{name} may set the variables of ranks"), node)


def given_variables(module: Module) -> frozenset[str]:
    """Return variables of a launcher that the script itself sets, always or where they have no value."""
    stored = {
        str(node.slice.value)
        for node in module.nodes(ast.Subscript)
        if isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and module.name(node.value) == "os.environ"
    }
    return frozenset(stored.union(_variables_with_defaults(module)))


def _variables_with_defaults(module: Module) -> Iterator[str]:
    """Yield variables that the script assigns only if they are unset."""
    for call in module.calls:
        first = call.args[0] if call.args else None
        if module.called(call) in ("os.environ.setdefault", "os.putenv") and isinstance(first, ast.Constant):
            yield str(first.value)
        elif module.called(call) == "os.environ.update":
            yield from (*_RANKS, *_OF_NODES)


def is_left_before(module: Module, node: ast.AST) -> bool:
    """Return whether the function around a node may return before it reaches the node."""
    function = module.outline.function_of(node)
    line = getattr(node, "lineno", 0)
    return function is not None and any(
        each.lineno < line and module.outline.function_of(each) is function for each in module.nodes(ast.Return)
    )


def always_reached(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a node is run unconditionally, outside a `try` and a function that may not be called."""
    if depth > _MAX_DEPTH or module.condition(node):
        return False
    parent = module.parent(node)
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        if isinstance(parent, (ast.Try, ast.ClassDef, ast.Lambda, ast.BoolOp, ast.While)):
            return False
        parent = module.parent(parent)
    if parent is None:
        return True
    calls = [call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == parent.name]
    return bool(calls) and all(always_reached(module, call, depth + 1) for call in calls)


_SCHEDULER = re.compile(r"(?:SLURMD?|OMPI|PBS|LSB|PADDLE)_[A-Z0-9_]+|FLAGS_selected_\w+")


def scheduler_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about variables of a scheduler that are read; those the script sets itself are its own."""
    own = set()
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and module.name(target.value) == "os.environ":
                own.add(getattr(module.fold(target.slice), "value", None))
    if _SCHEDULER.search(module.file.text) is None:
        return
    places: list[ast.expr] = [*module.named("get", "getenv")]
    places += [node for node in module.nodes(ast.Subscript) if isinstance(node.ctx, ast.Load)]
    for place in places:
        name = variable_read(module, place)
        if name is not None and _SCHEDULER.fullmatch(name) and name not in own:
            yield module.claim("variable_read", name, place, condition="")


_FEATURE = "name_of_rank"
_ADDRESS = "address_of_rank"
#: Definitions are followed to this depth.
_MAX_NAME_DEPTH = 4


class _Call(NamedTuple):
    """A call that connects the ranks.

    Args:
        package: the prefix of the called function's full name.
        arguments: the names that must be equal on all ranks, each with its position or None.
        feature: the claim if one of them contains the rank.
        local: whether the local rank is also wrong in it.
        alone: arguments that make the ranks differ from those of the job.
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


def names_with_rank(module: Module) -> Iterator[Claim]:
    """Yield the first such name of each call, and the first such address in a variable."""
    for call in module.named(*(name for name in _CALLS if name in module.by_name)):
        for row in _CALLS[module.called(call).rpartition(".")[2]]:
            if module.called(call).startswith(row.package) and not _is_apart(module, call, row):
                yield from _named_call_claims(module, call, row)
    for node in module.nodes(ast.Assign) if _joins_all(module) else ():
        target = node.targets[0]
        named = isinstance(target, ast.Subscript) and module.name(target.value) == "os.environ"
        if not named or not isinstance(target, ast.Subscript) or module.fold(target.slice) not in _VARIABLES:
            continue
        own = _Names(module, module.outline.function_of(node), _Call("", {}))
        if _is_of_all(module, node) and own.differ(node.value):
            yield module.feature(_ADDRESS, node)


def _named_call_claims(module: Module, call: ast.Call, row: _Call) -> Iterator[Claim]:
    own = _Names(module, module.outline.function_of(call), row)
    for name, position in row.arguments.items():
        given = argument(call, name, position)
        if given is not None and _is_of_all(module, call) and own.differ(value_of(given)):
            yield module.feature(row.feature, given)
            return


def _is_of_all(module: Module, node: ast.AST) -> bool:
    return ranks_of(module).inside(node).who is RankSet.ALL


def _is_apart(module: Module, call: ast.Call, row: _Call) -> bool:
    """Return whether a call joins a group of one rank, or of ranks that it chooses."""
    size = argument(call, "world_size")
    alone = size is not None and module.fold(value_of(size)) == Known(1)
    return alone or any(argument(call, name) is not None for name in row.alone)


#: Engines that make a group of their own in each rank.
_ENGINES = re.compile(r"\bvllm\b|\bsglang\b|lmdeploy")


def _joins_all(module: Module) -> bool:
    """Return whether the script itself joins the ranks, and no group of one rank."""
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
        """Return whether the value certainly contains the rank."""
        if depth > _MAX_NAME_DEPTH:
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
