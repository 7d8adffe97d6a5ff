"""Files that a program saves on one rank alone and loads under the name of each, or the other way round."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Known
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import RankSet, is_rank, ranks_of

#: The position of the path in calls that write and read one file.
_SAVES = {"torch.save": 1, "paddle.save": 1, "numpy.save": 0, "safetensors.torch.save_file": 1}
_LOADS = {"torch.load": 0, "paddle.load": 0, "numpy.load": 0, "safetensors.torch.load_file": 0}
_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
#: Stand for the rank and for any other value in a name.
_RANK, _OTHER = "\0", "\1"
_ASKS_FIRST = re.compile(r"exists\(|is_?file\(|except")
_CODE = re.compile(r"%[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z]")
_FIELD = re.compile(r"\{(\w*)(?:![rsa])?(?::[^{}]*)?\}")
_MAX_DEPTH = 6


class _File(NamedTuple):
    """A call with the last part of its path, and whether only the first rank makes the call."""

    call: ast.Call
    name: str
    who: RankSet


def claims(module: Module) -> Iterator[Claim]:
    """Yield the first load of a name of the rank that only rank 0 saves, and of one without it that each saves with
    it.
    """
    saves, loads = (list(_files(module, table)) for table in (_SAVES, _LOADS))
    for load in loads:
        asked = _ASKS_FIRST.search(module.condition(load.call)) is not None
        caught = any(isinstance(outer, ast.Try) for outer in module.outline.above(load.call))
        if load.who is not RankSet.ALL or asked or caught:
            continue
        alike = [save for save in saves if _saved_name_pattern(load.name).fullmatch(save.name)]
        if _RANK in load.name and alike and all(save.who in _FIRST_RANKS for save in alike):
            yield module.feature("loads_file_of_rank", load.call, alike[0].call, condition="")
            return
        plain = [save for save in saves if save.who is RankSet.ALL and _without_rank(save.name) == load.name]
        if not alike and plain:
            yield module.feature("loads_file_without_rank", load.call, plain[0].call, condition="")
            return


def _files(module: Module, table: dict[str, int]) -> Iterator[_File]:
    for call in module.named(*{last(name) for name in table}):
        position = table.get(module.called(call))
        given = argument(call, "path", position) or argument(call, "f", position) if position is not None else None
        name = _template(module, value_of(given)) if given is not None else None
        if name and re.search(r"\w", name.rpartition("/")[2]):
            inside = ranks_of(module).inside(call).who
            who = ranks_of(module).guard_of(call).who if inside is RankSet.ALL else inside
            # Whoever calls a function of a module, all that enter it come to a call without a condition.
            yield _File(call, name.rpartition("/")[2], RankSet.ALL if who is RankSet.UNDECIDED is not inside else who)


def _saved_name_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for the names under which rank 0 saves a loaded name: with the rank, or with its number."""
    return re.compile(re.escape(name).replace(re.escape(_RANK), f"(?:0+|{re.escape(_RANK)})"))


def _without_rank(name: str) -> str:
    """Return a name without the rank and what joins it: `model_0.pt` and `model.rank0.pt` are `model.pt`."""
    return re.sub(rf"[-_.]?(?:rank)?[-_]?{re.escape(_RANK)}", "", name) if _RANK in name else ""


def _template(module: Module, expression: ast.expr, depth: int = 0) -> str | None:
    """Return the text of a path, with a sign for the rank and for what is not known; None if it is not a text."""
    known = module.fold(expression)
    if isinstance(known, Known):
        return str(known.value)
    if depth > _MAX_DEPTH:
        return None

    def inner(each: ast.expr) -> str:
        return _template(module, each, depth + 1) or _OTHER

    if isinstance(expression, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.FormattedValue) else each for each in expression.values]
        return "".join(map(inner, parts))
    if isinstance(expression, ast.BinOp):
        left, right = inner(expression.left), expression.right
        if isinstance(expression.op, ast.Mod):
            values = iter(right.elts if isinstance(right, ast.Tuple) else [right])
            return _CODE.sub(lambda _: inner(value) if (value := next(values, None)) is not None else _OTHER, left)
        joint = {ast.Add: "", ast.Div: "/"}.get(type(expression.op))
        return f"{left}{joint}{inner(right)}" if joint is not None else None
    if isinstance(expression, ast.Call):
        return _call_file(module, expression, depth)
    if isinstance(expression, (ast.Name, ast.Attribute)):
        made = module.definition(expression)
        made = module.outline.assigned_once(made) or made
        if made is not expression:
            return _template(module, made, depth + 1)
    is_own = is_rank(module, expression) and not _is_counted(module, expression)
    return _RANK if is_own else None


def _is_counted(module: Module, name: ast.expr) -> bool:
    """Return whether a name is the variable of a loop around it (`for rank in range(world_size)`), not the own rank."""
    targets = (getattr(outer, "target", None) for outer in module.outline.above(name))
    counted = [target for target in targets if isinstance(target, ast.expr)]
    for outer in module.outline.above(name):
        counted += [each.target for each in getattr(outer, "generators", ())]
    return any(
        dotted(name) == dotted(node) for each in counted for node in ast.walk(each) if isinstance(node, ast.Name)
    )


def _call_file(module: Module, call: ast.Call, depth: int) -> str | None:
    name, function = module.called(call), call.func
    given = [_template(module, each, depth + 1) or _OTHER for each in call.args]
    if is_rank(module, call):
        return _RANK
    if last(name) in ("join", "joinpath") and name != ".join":
        return "/".join(given)
    if last(name) in ("str", "Path") and given:
        return given[0]
    if last(name) == "format" and isinstance(function, ast.Attribute):
        values = iter(given)
        named = {each.arg or "": _template(module, each.value, depth + 1) or _OTHER for each in call.keywords}
        text = _template(module, function.value, depth + 1) or _OTHER
        return _FIELD.sub(lambda field: named.get(field[1]) or (_OTHER if field[1] else next(values, _OTHER)), text)
    return None
