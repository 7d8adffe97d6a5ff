"""A port of the process group that every rank draws itself, so that each of them has another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.sources.python.environment import is_left_before
from preflight.sources.python.module import SPAWNS, Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import RankSet, ranks_of

#: Names of functions that look for a free port, and what such a function does.
_FREE_PORT = re.compile(r"(?:_|\b)(?:find|get|pick|next|choose)\w*port\b|free_?port|open_?port|random_?port")
_DRAWS = re.compile(r"getsockname\(|\brandint\(|\brandrange\(|\brandom\.|\btime\(\)|\buuid")
#: Functions that call each other are followed to this depth.
_MAX_DEPTH = 4


def claims(module: Module) -> Iterator[Claim]:
    """The first drawn port of the group in a place that every rank comes to: in MASTER_PORT, or in `init_method=`."""
    text = module.file.text
    if _GROUP.search(text) is None or "seed(" in text:
        return
    for node, ports in (*_assigned(module), *_written(module)):
        drawn = any(_drawn(module, port, sure=isinstance(node, ast.Call)) for port in ports)
        if not drawn or ranks_of(module).guard_of(node).who is not RankSet.ALL or _has_left(module, node):
            continue
        spawned = _in_spawned(module, node)
        if spawned or not any(module.called(call) in SPAWNS for call in module.named("spawn", "start_processes")):
            what = "address" if isinstance(node, ast.Call) else "port"
            name = f"{what}_drawn_by_{'spawned' if spawned else 'rank'}"
            yield module.claim("script_feature", name, node, condition=module.condition(node))
            return


def _assigned(module: Module) -> Iterator[tuple[ast.Assign | ast.Call, list[ast.expr]]]:
    """The places that set MASTER_PORT, unless the group meets elsewhere: the port is then for something else."""
    if "MASTER_PORT" not in module.file.text or _MEETS_ELSEWHERE.search(module.file.text):
        return
    for node in module.nodes(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or module.name(target.value) != "os.environ":
            continue
        if module.fold(target.slice) == Known("MASTER_PORT"):
            yield node, [node.value]


def _written(module: Module) -> Iterator[tuple[ast.Assign | ast.Call, list[ast.expr]]]:
    """The addresses of groups, with what they are composed of: `"tcp://%s:%s" % (host, port)`."""
    for call in module.named("init_process_group", "init_distributed"):
        given, size = argument(call, "init_method", 1), argument(call, "world_size", 3)
        alone = size is not None and module.fold(value_of(size)) == Known(1)
        if given is not None and not alone:
            address = module.definition(value_of(given))
            if "tcp:" in module.source(address):
                yield call, [each for each in ast.walk(address) if isinstance(each, (ast.Name, ast.Call))]


_GROUP = re.compile(r"\b(?:init_process_group|init_distributed)\(")
_MEETS_ELSEWHERE = re.compile(r"init_method\s*=\s*[rf]?[\"'](?:tcp|file)://")


def _has_left(module: Module, node: ast.Assign | ast.Call) -> bool:
    """Whether some processes may leave before a node, or have a group or a port by then."""
    function = module.outline.function_of(node)
    groups = module.named("init_process_group")
    earlier = any(module.outline.function_of(each) is function and each.lineno < node.lineno for each in groups)
    return earlier or is_left_before(module, node) or "MASTER_PORT" in module.condition(node)


#: Makes a drawn value the same for all ranks, or takes it from elsewhere first.
_SHARED = re.compile(r"environ|getenv|\bopen\(|\brank\b|get_rank|Random\(|default_rng\(|bcast|broadcast|gather")


def _drawn(module: Module, expression: ast.expr, *, sure: bool) -> bool:
    """Whether a value is drawn at random, or is that of a free port; `sure`: what draws it has to be in this file."""
    made = module.definition(expression)
    while isinstance(made, ast.Call) and last(module.called(made)) in ("str", "int") and made.args:
        made = module.definition(made.args[0])
    if not isinstance(made, (ast.Call, ast.JoinedStr, ast.BinOp)):
        return False
    text = module.source(made)
    if _SHARED.search(text):
        return False
    names = [last(module.called(call)) for call in ast.walk(made) if isinstance(call, ast.Call)]
    own = [function for name in names for function in module.outline.functions(name)]
    if own:
        sources = [module.source(function) for function in own]
        return any(map(_DRAWS.search, sources)) and not any(map(_SHARED.search, sources))
    return _DRAWS.search(text) is not None or (not sure and _FREE_PORT.search(text) is not None)


def _in_spawned(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether a function that is run in each spawned process comes to a node."""
    function = module.outline.function_of(node)
    if function is None or depth > _MAX_DEPTH:
        return False
    if any(
        module.outline.function_of(call) is function for call in module.named("spawn", "start_processes", "Process")
    ):
        # It starts processes itself, which take its port.
        return False
    for call in module.named("spawn", "start_processes", "Process"):
        if last(module.called(call)) == "Process" and not any(
            isinstance(outer, (ast.For, ast.While, ast.ListComp)) for outer in module.outline.above(call)
        ):
            continue
        started = argument(call, "target") if last(module.called(call)) == "Process" else argument(call, "fn", 0)
        if started is not None and dotted(value_of(started)) == function.name:
            return True
    return any(_in_spawned(module, call, depth + 1) for call in module.outline.calls_named(function.name))
