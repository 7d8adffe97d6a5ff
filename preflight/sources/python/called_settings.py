"""The arguments of well-known calls as settings of a framework: `setting.paddle_spawn.nprocs`, with the call as place.

`called_settings.toml` names the calls and the order of their arguments; what is wrong with a value is a row of the
rules' tables (data/refusals/FAMILY.toml).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util import toml
from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value
from preflight.model.job.value import SECTION, SETTING_PREFIX
from preflight.sources.python import imports
from preflight.sources.python.environment import is_left_before
from preflight.sources.python.model_features import LOOPS
from preflight.sources.python.module import Module, argument, attributes, enclosing, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.paddle_legacy import is_transpile
from preflight.sources.python.rank_conditions import (
    RankSet,
    first_without,
    is_local,
    is_rank,
    ranks_of,
    ranks_where_true,
    variable_read,
)
from preflight.sources.python.shards import setting_of

#: How these claims are named; `because` is the call.
SOURCE = "call"
#: Stands for the call itself: true where all its arguments are written out.
CALL = "(call)"
#: What is stated of a call itself, beside its arguments.
FACTS = frozenset(
    (
        *("function", "early", "late", "last", "owner", "wrapper", "found", "unused", "again", "reached_by", "then"),
        *("inside", "outside"),
    )
)


#: Those of them that depend on the rest of the program.
OF_PROGRAM = tuple(f".{fact}" for fact in ("early", "late", "last", "found", "unused", "again", "reached_by", "then"))


class Called(NamedTuple):
    """A row of `called_settings.toml`, whose head describes the fields."""

    framework: str
    names: tuple[str, ...]
    positions: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    sets: bool = False
    after: tuple[str, ...] = ()
    uses: bool = False
    looks_for: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    family: str = ""
    extended: bool = False
    beside: tuple[str, ...] = ()
    followed: bool = False
    block: bool = False
    under: tuple[str, ...] = ()
    on_one_rank: bool = False


class Calls(NamedTuple):
    """The rows of the table.

    Args:
        paddle: the frameworks of Paddle's calls.
        families: the family of each framework of the other libraries.
        torch: the frameworks of torch and its neighbours, which begin with the name of the library.
        by_name: the rows by the last part of the name of what is called.
    """

    paddle: tuple[str, ...]
    families: dict[str, str]
    torch: tuple[str, ...]
    by_name: dict[str, list[Called]]


@functools.cache
def calls() -> Calls:
    """Return the table, read once."""
    table = toml.beside(__file__, "called_settings.toml")
    rows: dict[str, list[Called]] = {}
    by_name: dict[str, list[Called]] = {}
    for group in ("paddle", "other", "torch"):
        for row in table[group]:
            called = Called(**toml.with_tuples(row))
            rows.setdefault(group, []).append(called)
            for name in called.names:
                by_name.setdefault(name, []).append(called)
    paddle, torch = (tuple(dict.fromkeys(called.framework for called in rows[group])) for group in ("paddle", "torch"))
    return Calls(paddle, {called.framework: called.family for called in rows["other"]}, torch, by_name)


@functools.cache
def _library_pattern() -> re.Pattern[str]:
    """Return a pattern for imports of libraries with known calls: the names of their families, and three more."""
    names = {"peft", "trl", "evaluate", *calls().families.values()} - {"ray"}
    return re.compile("|".join((*sorted(names), r"\bray\b")))


#: The calls of NeMo-Run that make what their first argument names.
_BUILDERS = ("nemo_run.Config", "nemo_run.Partial")
#: Libraries of the rows of torch and its neighbours.
_LIBRARIES = ("torch", "deepspeed", "horovod", "colossalai", "fairscale")
#: Calls of one script that are read; more are not configuration.
_MAX_CALLS = 120
#: Somebody is always among these.
_FIRST_RANKS = (RankSet.FIRST, RankSet.LOCAL_FIRST)
#: Arguments within arguments, such as those of an optimizer's clipping.
_MAX_DEPTH = 2
#: Below an argument: the class that it is made of or names, and the number of its items.
MAKER = "made_by"
ITEMS = "count"


def claims(module: Module) -> Iterator[Claim]:
    """Yield the arguments of every call of Paddle's, and of Hugging Face's and Lightning's, in the tables."""
    used = calls().paddle if "paddle" in module.file.text else ()
    if _library_pattern().search(module.file.text) is not None:
        used += tuple(calls().families)
    if used:
        yield from _claims(module, used)


def torch_claims(module: Module) -> Iterator[Claim]:
    """Yield the arguments of every call of torch and its neighbours in the table."""
    used = tuple(library for library in _LIBRARIES if library in module.file.text)
    if used:
        yield from _claims(module, tuple(name for name in calls().torch if name.startswith(used)))


def _claims(module: Module, frameworks: Sequence[str]) -> Iterator[Claim]:
    found: list[tuple[Called, ast.Call]] = []
    for call in module.calls:
        name = module.name(call.args[0]) if _is_built(module, call) else module.called(call)
        made = [(name, called) for called in calls().by_name.get(last(name), ())] or _extended_rows(module, call)
        for name, called in made:
            if called.framework not in frameworks or called.followed:
                continue
            if called.framework == "fluid_transpile" and not is_transpile(call):
                continue
            if not called.within or any(text in name for text in called.within):
                found.append((called, call))
                break
    for called, call in truncate(found, _MAX_CALLS, "calls whose arguments are settings"):
        of_ranks = _condition_on_ranks(module, call)
        for claim in _state_setting(module, called, call):
            # Some ranks make the call for certain.
            yield replace(claim, condition="") if of_ranks and claim.condition == of_ranks else claim


def _extended_rows(module: Module, call: ast.Call) -> list[tuple[str, Called]]:
    """Return the rows of the class that the script's called class extends, with the name of that class."""
    names = [module.name(base) for base in _bases(module, call)]
    return [(name, called) for name in names for called in calls().by_name.get(last(name), ()) if called.extended]


def _condition_on_ranks(module: Module, call: ast.Call) -> str:
    """Return the condition of a call, if some ranks certainly fulfil it and it is about nothing else; otherwise
    empty.
    """
    guard, condition = ranks_of(module).guard_of(call), module.condition(call)
    if guard.test is None:
        return ""
    # `rank != -1` and `local_rank != -1` ask whether a launcher has set the rank.
    certain = guard.who in _FIRST_RANKS or all(
        first_without(module, guard.test, otherwise=each) is not None for each in (True, False)
    )
    if not certain:
        return ""
    test = module.text(guard.test)
    return condition if condition in (test, f"not ({test})") else ""


def _state_setting(module: Module, called: Called, call: ast.Call) -> Iterator[Claim]:
    prefix = f"{SETTING_PREFIX}{called.framework}."
    built = _is_built(module, call)
    whole = (
        not built
        and not any(isinstance(item, ast.Starred) for item in call.args)
        and all(item.arg for item in call.keywords)
    )
    place = module.claim(f"{prefix}{CALL}", whole, call.func, source=SOURCE)
    yield module.claim(f"{prefix}{CALL}", whole, call.func, source=SOURCE, because=(place,))
    yield module.claim(f"{prefix}function", module.called(call), call.func, source=SOURCE, because=(place,))
    owner = _assigned_value(module, call.func.value) if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Call):
        yield module.claim(f"{prefix}owner", last(module.called(owner)), call.func, source=SOURCE, because=(place,))
    reached_by = ranks_of(module).guard_of(call).who
    # A condition on the rank says who calls it; it does not leave open whether it is called.
    condition = "" if reached_by in _FIRST_RANKS else None
    facts: dict[str, Value | bool | str] = {"reached_by": reached_by.value}
    if called.before and _comes_late(module, call, called.before):
        facts["late"] = True
        if _comes_after_loops(module, call):
            facts["last"] = True
    if called.after and _comes_early(module, call, called):
        facts["early"] = True
    if called.sets and _is_only_configured(module, call):
        facts["unused"] = True
    if _is_made_again(module, call):
        facts["again"] = True
    if called.block and (inside := _calls_inside(module, call)):
        facts["inside"] = Known(inside)
    if called.under and _is_outside(module, call, called.under):
        facts["outside"] = True
    if called.looks_for:
        facts["found"] = _made_calls(module, called.looks_for)
    for name, value in facts.items():
        key = f"{prefix}{name}"
        yield module.claim(key, value, call.func, source=SOURCE, because=(place,), condition=condition)
    for key, given in _arguments(call, ("(class)", *called.positions) if built else called.positions):
        yield from _argument(module, f"{prefix}{key}", given, (place,), 0)
        yield from _about_ranks(module, f"{prefix}{key}", given, place)
        if key in called.beside:
            yield from _from_settings_file(module, f"{prefix}{key}.beside", given, place)
        if called.uses and isinstance(value_of(given), ast.Name):
            name = dotted(value_of(given))
            yield from _uses(module, f"{prefix}{key}.before", name, call, place, before=True)
            yield from _uses(module, f"{prefix}{key}.after", name, call, place, before=False)
    if called.uses:
        for number, name in enumerate(_results(module, call)):
            then = f"{prefix}then_{number}" if number else f"{prefix}then"
            yield from _uses(module, then, name, call, place, before=False)
    target = module.bound_to(call) if called.sets else ""
    for name, items in attributes(module).items() if target else ():
        # `options.experimental_distribute.auto_shard_policy = ...` sets an attribute of an attribute.
        path = f"{name}.".removeprefix(f"{target}.")
        for item in truncate(items, _MAX_CALLS, "settings") if path != f"{name}." else ():
            if not is_secret(item.name):
                yield from _argument(module, f"{prefix}{path}{item.name}", item.value, (place,), 0, at=item.at)


def _is_only_configured(module: Module, call: ast.Call) -> bool:
    """Return whether the result of a call gets a name that is used only to set its attributes."""
    parent, name = module.parent(call), module.bound_to(call)
    in_class = isinstance(parent, ast.Assign) and isinstance(module.parent(parent), ast.ClassDef)
    if not isinstance(parent, ast.Assign) or in_class or not name.isidentifier():
        return False
    loads = [node for node in module.nodes(ast.Name) if node.id == name and isinstance(node.ctx, ast.Load)]
    return bool(loads) and all(_is_set(module, node) for node in loads)


def _is_made_again(module: Module, call: ast.Call) -> bool:
    """Return whether another call of the same function has the same first argument, a constant.

    Without a first argument it is the name, of another item of the same list: `[Table(name="a"), Table(name="a")]`.
    """
    others = [other for other in module.named(last(module.called(call))) if other is not call]
    if call.args:
        first = module.fold(call.args[0])
        return isinstance(first, Known) and any(other.args and module.fold(other.args[0]) == first for other in others)
    name, listed = argument(call, "name"), module.parent(call)
    if name is None or not isinstance(listed, ast.List):
        return False
    named = [argument(other, "name") for other in others if module.parent(other) is listed]
    own = module.fold(value_of(name))
    return isinstance(own, Known) and any(each is not None and module.fold(value_of(each)) == own for each in named)


def _calls_inside(module: Module, call: ast.Call) -> tuple[str, ...]:
    """Return the names of what is called in the block of a `with` that makes this call."""
    item = module.parent(call)
    outer = module.parent(item) if isinstance(item, ast.withitem) else None
    if not isinstance(outer, ast.With):
        return ()
    nodes = (node for statement in outer.body for node in ast.walk(statement))
    return tuple(dict.fromkeys(module.called(node) for node in nodes if isinstance(node, ast.Call)))


def _is_outside(module: Module, call: ast.Call, names: Sequence[str]) -> bool:
    """Return whether the function of a call has a `with` of one of these names, and the call is in none."""
    blocks = [
        outer
        for outer in module.nodes(ast.With)
        for item in outer.items
        if isinstance(item.context_expr, ast.Call) and last(module.called(item.context_expr)) in names
    ]
    around = enclosing(module, call)
    here = [outer for outer in blocks if enclosing(module, outer) is around]
    return bool(here) and not any(outer in here for outer in module.outline.above(call))


def _is_set(module: Module, node: ast.Name) -> bool:
    """Return whether one of a name's attributes is assigned at this name: `name.a.b = 1`, `name.a["b"] = 1`."""
    outer = module.parent(node)
    while isinstance(outer, (ast.Attribute, ast.Subscript)):
        if isinstance(outer.ctx, ast.Store):
            return True
        outer = module.parent(outer)
    return False


def _made_calls(module: Module, names: Sequence[str]) -> Value:
    """Return which of these calls the script makes, or a user module that it imports mentions."""
    modules, complete = imports.texts_of_modules(module)
    text = "\n".join(each.text for each in modules)
    own = module.file.text
    found = [
        name
        for name in names
        if module.named(name)
        or re.search(_extending_or_reading(name), f"{own}\n{text}", re.MULTILINE)
        or re.search(rf"(?<!def )\b{re.escape(name)}\(", text)
    ]
    if not complete:
        return Unresolved("not all modules that the script imports were searched")
    return Known(tuple(found))


def _extending_or_reading(name: str) -> str:
    """Return the expression of a class that extends another, or of what reads an attribute (`.name`)."""
    return rf"\{name}\b" if name.startswith(".") else rf"^\s*class \w+\([^)]*\b{name}\b"


def _is_built(module: Module, call: ast.Call) -> bool:
    """Return whether NeMo-Run makes the object later, which other statements may change until then."""
    return module.called(call) in _BUILDERS and bool(call.args)


def _results(module: Module, call: ast.Call) -> list[str]:
    """Return the names assigned to the result of a call; several for `engine, optimizer, *_ = initialize(...)`."""
    parent = module.parent(call)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if isinstance(target, ast.Tuple) and target.elts:
        return [dotted(item) if not isinstance(item, ast.Starred) else "" for item in target.elts]
    return [module.bound_to(call)]


def _about_ranks(module: Module, key: str, given: ast.keyword | ast.expr, place: Claim) -> Iterator[Claim]:
    """Yield the relation of an argument to ranks.

    `KEY.rank` is "local" or "global" for a rank, "from local" or "from global" for a value computed from one.
    `KEY.variable` is the variable that the argument is read from, `KEY.divided_by` the function whose result divides
    it. `KEY.is_list` is added for a list, `KEY.repeated` for a list with one object several times, and `KEY.chosen_by`
    for `a if rank == 0 else None`.
    """
    written = value_of(given)
    made = _assigned_value(module, written)
    facts: dict[str, Value] = {}
    if is_rank(module, written) or is_rank(module, made):
        facts["rank"] = Known("local" if is_local(module, written) else "global")
    else:
        parts = [node for node in _parts(made) if isinstance(node, (ast.Name, ast.Attribute, ast.Call))]
        ranks = [node for node in parts if is_rank(module, node)]
        if ranks:
            facts["rank"] = Known("from local" if any(is_local(module, node) for node in ranks) else "from global")
    inner = made.args[0] if isinstance(made, ast.Call) and last(module.called(made)) == "int" and made.args else made
    variable = variable_read(module, inner)
    if variable is not None:
        facts["variable"] = Known(variable)
    if (
        isinstance(made, ast.BinOp)
        and isinstance(made.op, (ast.Div, ast.FloorDiv))
        and isinstance(made.right, ast.Call)
    ):
        facts["divided_by"] = Known(last(module.called(made.right)))
    if isinstance(made, (ast.List, ast.ListComp)):
        facts["is_list"] = Known(True)
    if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Mult) and isinstance(made.left, ast.List):
        # `[torch.empty(1)] * size` holds one object several times.
        facts["repeated"] = Known(any(isinstance(each, ast.Call) for each in made.left.elts))
    if isinstance(written, ast.IfExp) and Known(None) in (module.fold(written.body), module.fold(written.orelse)):
        who = ranks_where_true(module, written.test)
        if who not in (RankSet.ALL, RankSet.UNDECIDED):
            facts["chosen_by"] = Known(who.value)
    for name, value in facts.items():
        yield replace(
            module.claim(f"{key}.{name}", value, given, source=SOURCE, because=(place,)), span=module.span(given)
        )


def _from_settings_file(module: Module, key: str, given: ast.keyword | ast.expr, place: Claim) -> Iterator[Claim]:
    """Yield a claim for an argument that the script looks up in the only settings file near it: `settings["files"]`."""
    made = _assigned_value(module, value_of(given))
    items = made.elts if isinstance(made, (ast.List, ast.Tuple)) else [made]
    entries = [setting_of(module, item) for item in items if isinstance(item, ast.Subscript)]
    found = [entry.node.value for entry in entries if entry is not None]
    values = tuple(value for value in found if isinstance(value, (str, int, float)))
    if values and len(values) == len(items):
        value = Known(values[0] if isinstance(made, ast.Subscript) else values)
        claim = module.claim(key, value, given, source=SOURCE, because=(place,))
        yield replace(claim, span=module.span(given))


def _parts(made: ast.expr) -> Iterator[ast.AST]:
    """Yield an expression and what it is computed from, but not from what its numbers are drawn and where they lie."""
    pending: list[ast.AST] = [made]
    while pending:
        node = pending.pop()
        yield node
        pending += [
            child
            for child in ast.iter_child_nodes(node)
            if not (isinstance(child, ast.keyword) and child.arg in ("generator", "device"))
        ]


def _uses(module: Module, key: str, name: str, call: ast.Call, place: Claim, *, before: bool) -> Iterator[Claim]:
    """Yield the uses of an object in the function of a call, before or after it: `.half()`, `clip_grad_norm_(_.x())`.

    The object's name is left out where one of its methods is called, and is `_` in the arguments of another call.
    """
    around = enclosing(module, call)
    found: list[str] = []
    parent = module.parent(call)
    if not before and isinstance(parent, ast.Attribute) and isinstance(module.parent(parent), ast.Call):
        found.append(f".{parent.attr}()")
    others = [other for other in module.calls if other is not call and enclosing(module, other) is around]
    for other in others if name else ():
        if ((other.lineno, other.col_offset) < (call.lineno, call.col_offset)) is before:
            found += _uses_in(module, other, name, 0)
    for node in module.nodes(ast.Assign) if name and before else ():
        targets = [dotted(target) for target in node.targets if dotted(target).startswith(f"{name}.")]
        if targets and node.lineno < call.lineno and enclosing(module, node) is around:
            found.append(f"{targets[0].removeprefix(name)} =")
    if found and not before and _is_used_elsewhere(module, name, around):
        found.append("unknown(_")
    if found:
        uses = tuple(truncate(found, _MAX_CALLS, "uses of an object"))
        yield module.claim(key, uses, call, source=SOURCE, because=(place,))


def _is_used_elsewhere(module: Module, name: str, around: ast.AST | None) -> bool:
    """Return whether functions other than the one around a call use the object of this name: of an attribute, any
    may.
    """
    loads = (node for node in module.nodes(ast.Name) if node.id == name and isinstance(node.ctx, ast.Load))
    return "." in name or any(enclosing(module, node) is not around for node in loads)


def _uses_in(module: Module, call: ast.Call, name: str, depth: int) -> Iterator[str]:
    """Yield the uses of an object by a call, and by functions of the script that receive the object."""
    text = module.text(call)
    if text.startswith((f"{name}.", f"{name}(")):
        yield text.removeprefix(name)
        return
    arguments = [*call.args, *(each.value for each in call.keywords)]
    given = any(dotted(item).split(".")[0] == name for item in arguments)
    if given or f"({name}." in text:
        yield f"{module.called(call)}(_"
    functions = module.outline.functions(call.func.id) if isinstance(call.func, ast.Name) and given else ()
    if len(functions) != 1 or depth == _MAX_DEPTH or module.condition(call):
        return
    bound = module.outline.assignments(functions[0])
    places = [(each.arg, item) for each, item in zip(functions[0].args.args, call.args, strict=False)]
    places += [(each.arg, each.value) for each in call.keywords if each.arg]
    for parameter in [place for place, item in places if dotted(item) == name and place not in bound]:
        for inner in module.outline.calls_in(functions[0]):
            if not module.condition(inner) and not is_left_before(module, inner):
                yield from _uses_in(module, inner, parameter, depth + 1)


def _comes_early(module: Module, call: ast.Call, called: Called) -> bool:
    """Return whether a call that should precede this one follows it in the same function, and none does precede it."""
    around, names = enclosing(module, call), called.after
    others = [other for other in module.named(*names) if enclosing(module, other) is around]
    if called.on_one_rank:
        others = [other for other in others if ranks_of(module).guard_of(other).who in _FIRST_RANKS]
    # Any run of an executor but that of the startup program comes after the workers are there.
    others = [other for other in others if last(module.called(other)) != "run" or "startup" in module.text(other)]
    places: list[ast.Call | ast.Assign] = [*others, *_variables_set(module, around, names)]
    return bool(places) and all(place.lineno > call.lineno and _is_reached(module, place) for place in places)


def _variables_set(module: Module, around: ast.AST, names: Sequence[str]) -> Iterator[ast.Assign]:
    """Yield the places where a function assigns variables of these names: `os.environ["TF_CONFIG"] = ...`."""
    for node in module.nodes(ast.Assign) if any(name.isupper() for name in names) else ():
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and module.name(target.value) == "os.environ":
            key = module.fold(target.slice)
            if isinstance(key, Known) and key.value in names and enclosing(module, node) is around:
                yield node


def _comes_late(module: Module, call: ast.Call, names: Sequence[str]) -> bool:
    """Return whether one of these calls certainly precedes the call in the same function."""
    around = enclosing(module, call)
    others = [other for other in module.named(*names) if enclosing(module, other) is around]
    return any(other.lineno < call.lineno and not module.condition(other) for other in others)


#: Calls that train, and those that only look.
_TRAINS = re.compile(r"(?:^|_)(?:train|fit|tune|finetune|backward|step)(?:_|$)|training|train_", re.IGNORECASE)
_LOOKS = re.compile(r"eval|valid|test|predict|infer|export|save|load", re.IGNORECASE)


def _comes_after_loops(module: Module, call: ast.Call) -> bool:
    """Return whether a loop of the same function trained before the call, and no loop or call that may train comes
    after.
    """
    around = enclosing(module, call)
    here = [other for other in module.calls if enclosing(module, other) is around and _may_train(module, other)]
    loops = [loop for loop in module.nodes(*LOOPS) if enclosing(module, loop) is around]
    return (
        any(other.lineno < call.lineno for other in here)
        and not any(other.lineno > call.lineno for other in here)
        and all((loop.end_lineno or loop.lineno) < call.lineno for loop in loops)
    )


def _may_train(module: Module, call: ast.Call) -> bool:
    """Return whether a call may be one of training, by its name, or because an optimizer is passed to it."""
    name = last(module.called(call))
    if _LOOKS.search(name) or not name:
        return False
    given = (dotted(item) for item in (*call.args, *(keyword.value for keyword in call.keywords)))
    return _TRAINS.search(name) is not None or any(re.search(r"(?:^|[._])opt", each) for each in given)


def _is_reached(module: Module, place: ast.Call | ast.Assign) -> bool:
    """Return whether a call or an assignment is under no condition but that of the first rank."""
    return not module.condition(place) or ranks_of(module).inside(place).who in _FIRST_RANKS


def _arguments(call: ast.Call, positions: Sequence[str]) -> Iterator[tuple[str, ast.keyword | ast.expr]]:
    for name, item in zip(positions, call.args, strict=False):
        if isinstance(item, ast.Starred):
            return
        yield name, item
    for keyword in call.keywords:
        if keyword.arg and not is_secret(keyword.arg):
            yield keyword.arg, keyword


def _comprehension_items(module: Module, made: ast.expr) -> int | None:
    """Return the number of items of `[... for _ in range(8)]`; None for any other expression."""
    loop = made.generators[0] if isinstance(made, ast.ListComp) and len(made.generators) == 1 else None
    if loop is None or loop.ifs or not isinstance(loop.iter, ast.Call) or module.called(loop.iter) != "range":
        return None
    found = module.fold(loop.iter.args[0]) if len(loop.iter.args) == 1 else None
    return found.value if isinstance(found, Known) and isinstance(found.value, int) else None


def _argument(
    module: Module,
    key: str,
    given: ast.keyword | ast.expr,
    because: tuple[Claim, ...],
    depth: int,
    *,
    at: ast.AST | None = None,
) -> Iterator[Claim]:
    written = value_of(given)
    made = _assigned_value(module, written)
    value: Value = Known(SECTION) if isinstance(made, ast.Dict) else module.fold(written)
    nested = _nested_claims(module, made)
    if nested is not None:
        value = nested
    claim = module.claim(key, value, at or given, source=SOURCE, because=because)
    yield replace(claim, span=module.span(at or given))
    inner: list[tuple[str, ast.keyword | ast.expr]] = []
    if isinstance(made, ast.Dict):
        for written_key, item in zip(made.keys, made.values, strict=True):
            known = written_key.value if isinstance(written_key, ast.Constant) else None
            if isinstance(known, str) and not is_secret(known):
                yield from _argument(module, f"{key}.{known}", item, because, depth + 1, at=written_key)
        return
    # An empty list with a name is filled later.
    if isinstance(made, (ast.List, ast.Tuple, ast.Set)) and (made.elts or made is written):
        yield replace(claim, quantity=f"{key}.{ITEMS}", value=Known(len(made.elts)), span=module.span(at or given))
        nones = sum(isinstance(item, ast.Constant) and item.value is None for item in made.elts)
        yield replace(claim, quantity=f"{key}.nones", value=Known(nones), span=module.span(at or given))
        items = [item for each in made.elts if isinstance(item := _assigned_value(module, each), ast.Call)]
        if items and depth < _MAX_DEPTH:
            classes = Known(tuple(last(module.called(item)) for item in items))
            yield replace(claim, quantity=f"{key}.classes", value=classes, span=module.span(at or given))
    length = _comprehension_items(module, made)
    if length is not None:
        yield replace(claim, quantity=f"{key}.{ITEMS}", value=Known(length), span=module.span(at or given))
    shown = last(module.called(made)) if isinstance(made, ast.Call) else _class_named(module, made)
    if shown and shown != "getattr":
        yield replace(claim, quantity=f"{key}.{MAKER}", value=Known(shown), span=module.span(at or given))
    reads = _read_by(module, made)
    if reads:
        yield replace(claim, quantity=f"{key}.reads", value=Known(reads), span=module.span(at or given))
    if isinstance(made, ast.Call):
        count = Known(len(made.args) + len(made.keywords))
        yield replace(claim, quantity=f"{key}.arguments", value=count, span=module.span(at or given))
    if isinstance(made, ast.Call) and depth < _MAX_DEPTH:
        bases = [last(module.name(base)) for base in _bases(module, made)]
        if bases:
            yield replace(claim, quantity=f"{key}.extends", value=Known(bases[0]), span=module.span(at or given))
        positions = next((called.positions for called in calls().by_name.get(shown, ())), ())
        inner.extend(_arguments(made, positions))
        inner.extend(("device", around) for around in _devices_around(module, made))
        if any(not item.arg for item in made.keywords):
            yield replace(claim, quantity=f"{key}.others", value=Known(True), span=module.span(at or given))
    for word, below in inner:
        yield from _argument(module, f"{key}.{word}", below, because, depth + 1)


def _read_by(module: Module, made: ast.expr) -> tuple[str, ...]:
    """Return the names that a lambda, or a function of the script, reads from around it; empty for anything else."""
    functions = module.outline.functions(made.id) if isinstance(made, ast.Name) else ()
    function = made if isinstance(made, ast.Lambda) else functions[0] if len(functions) == 1 else None
    if function is None:
        return ()
    body = [function.body] if isinstance(function, ast.Lambda) else function.body
    nodes = [node for part in body for node in ast.walk(part)]
    own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outer = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    read = [node for node in nodes if isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in outer]
    return tuple(dict.fromkeys(module.name(node) for node in read if dotted(node).partition(".")[0] not in own))


def _devices_around(module: Module, made: ast.Call) -> Iterator[ast.expr]:
    """Yield the device of `with torch.device(...):` or `with device:` around a call."""
    if argument(made, "device") is not None:
        return
    for outer in module.outline.above(made):
        for item in outer.items if isinstance(outer, ast.With) else ():
            device = module.definition(item.context_expr)
            if isinstance(device, ast.Call) and module.called(device) == "torch.device":
                yield device
                return
            if isinstance(device, (ast.Name, ast.Attribute)) and "device" in dotted(device).lower():
                yield device
                return


def _assigned_value(module: Module, expression: ast.expr) -> ast.expr:
    """Return the value of a name where it is used: its only assignment, or the last one above in the same function."""
    made = module.definition(expression)
    if not isinstance(made, ast.Name) and (made is expression or made.lineno < expression.lineno):
        return made
    name = expression.id if isinstance(expression, ast.Name) else ""
    around = enclosing(module, expression)
    above = [
        node
        for node in module.nodes(ast.Assign)
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        and enclosing(module, node) is around
        and node.lineno < expression.lineno
    ]
    plain = above and not any(module.condition(node) for node in above)
    return above[-1].value if plain else expression


def _bases(module: Module, made: ast.Call) -> Sequence[ast.expr]:
    """Return the bases of a class of the script itself that is called."""
    for node in module.nodes(ast.ClassDef):
        if isinstance(made.func, ast.Name) and node.name == made.func.id:
            return node.bases
    return ()


def _nested_claims(module: Module, made: ast.expr) -> Value | None:
    """Return a list of lists as a text, such as `0,1;2,3`; None for anything else."""
    if not isinstance(made, ast.List) or not made.elts or not all(isinstance(row, ast.List) for row in made.elts):
        return None
    rows = [module.fold(row) for row in made.elts]
    if not all(isinstance(row, Known) and isinstance(row.value, tuple) for row in rows):
        return Unresolved("numbers that are known only at run time")
    return Known(";".join(",".join(str(item) for item in row.value) for row in rows))  # type: ignore[union-attr]


def _class_named(module: Module, expression: ast.expr) -> str:
    """Return the name of what a script imports, or of `Role.WORKER` and `torch.float16`; empty for anything else."""
    full = module.name(expression) if isinstance(expression, (ast.Name, ast.Attribute)) else ""
    name = last(full)
    if isinstance(expression, ast.Name):
        return name if module.is_imported(expression.id) else ""
    return name if name[:1].isupper() or (full.startswith("torch.") and full.count(".") == 1) else ""
