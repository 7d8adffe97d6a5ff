"""The calls of `called_settings.toml` that a run reaches, with their values.

The source of a script shows such a call if the script contains it with its arguments; a run also shows calls in other
modules and methods, and their order.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Span, Strength, Unresolved, Value
from preflight.model.job.value import SECTION, SETTING_PREFIX
from preflight.sources.base import SourceFile
from preflight.sources.python.called_settings import CALL, ITEMS, MAKER, SOURCE, Called, calls
from preflight.sources.python.model_wrappers import OPTIMIZER
from preflight.sources.python.module import last
from preflight.sources.python.paddle_legacy import is_transpile
from preflight.sources.python.rank_conditions import RankSet
from preflight.sources.python.simulation.data_origins import is_sized_by_data, is_sized_by_rank, samples_other
from preflight.sources.python.simulation.run_state import Event, Run
from preflight.sources.python.simulation.values import (
    DictValue,
    External,
    Instance,
    ListValue,
    NotKnown,
    Own,
    mixed,
    native,
)

#: Arguments within arguments.
_MAX_DEPTH = 2
#: Uses of one object that are stated.
_MAX_USES = 60
#: Arguments by which the ranks meet in one folder.
_MEETING_PLACES = frozenset(("checkpoint_id",))
#: Arguments that draw from the data which stand beside them.
_SAMPLERS = frozenset(("sampler", "batch_sampler"))
#: Arguments that every rank has to give alike, in one order.
_ALIKE = frozenset(("ranks",))
#: Dots in the name of an argument: `setting.paddle_init.strategy`; more are in that of a key in it.
_DEPTH_OF_ARGUMENT = 2


class Place(NamedTuple):
    """The location of a claim."""

    file: SourceFile
    node: ast.AST


#: The file of a call, where it begins, and where it ends: of `data.map(...).shuffle(...)` both begin at one place.
_CallPlace: TypeAlias = tuple[str, int, int, int | None, int | None]


class ReachedCall(NamedTuple):
    """A call of the table, as runs reach it.

    Args:
        events: each time that a run reaches it.
        around: all calls of the first run that reaches it.
        reached_by: the ranks that reach it.
    """

    row: Called
    events: Sequence[Event]
    around: Sequence[Event]
    reached_by: RankSet


def seen(runs: Sequence[Run]) -> Iterator[ReachedCall]:
    """Yield the calls of the table among the events of some runs, each once."""
    found: dict[_CallPlace, list[tuple[int, int, Event]]] = {}
    # What differs between ranks is not known for any of them.
    others: dict[_CallPlace, list[Event]] = {}
    for run in runs:
        for event in run.events if run.is_of_any else ():
            others.setdefault(_place(event), []).append(event)
    runs = [run for run in runs if not run.is_of_any] or runs
    for rank, run in enumerate(runs):
        for number, event in enumerate(run.events):
            if event.name and event.doubt < 2:
                found.setdefault(_place(event), []).append((rank, number, event))
    for places in found.values():
        event = places[0][2]
        row = _row(event)
        if row is None:
            continue
        ranks = {rank for rank, _, _ in places}
        same = [rank for rank, run in enumerate(runs) if run.role == runs[min(ranks)].role]
        reached_by = RankSet.ALL if ranks >= set(same) else RankSet.FIRST if ranks == {0} else RankSet.OTHERS
        events = [*(event for _, _, event in places), *others.get(_place(event), ())]
        yield ReachedCall(row, events, runs[min(ranks)].events, reached_by)


def _place(event: Event) -> _CallPlace:
    return event.file.path, event.node.lineno, event.node.col_offset, event.node.end_lineno, event.node.end_col_offset


def _row(event: Event) -> Called | None:
    """Return the row of the table for a call; None if there is none."""
    for row in calls().by_name.get(last(event.name.removesuffix("()")) if event.name[-1:] != ")" else "", ()):
        if row.framework == "fluid_transpile" and not is_transpile(event.node):
            continue
        if not row.within or any(text in event.name for text in row.within):
            return row
    return None


def claims(
    runs: Sequence[Run], texts: Collection[str], stated: Mapping[tuple[str, str, int, int], Claim], new: Any
) -> Iterator[Claim]:
    """Yield the settings of the calls that runs reach, if the source does not show them.

    Args:
        texts: the sources of the modules that the runs reached.
        stated: the known claims of the launch, by quantity and place.
        new: creates a claim from a quantity, a value and a place.
    """
    called = {last(event.name) for run in runs for event in run.events}
    for each in seen(runs):
        event = each.events[0]
        library = each.row.framework.partition("_")[0] if each.row.framework in calls().torch else ""
        if not any(library in text for text in texts):
            continue
        prefix = f"{SETTING_PREFIX}{each.row.framework}."
        at = Place(event.file, event.node.func)
        place: Claim = new(f"{prefix}{CALL}", Known(True), at)
        facts: dict[str, tuple[Value, Place]] = {
            CALL: (Known(True), at),
            "function": (Known(event.name), at),
            "reached_by": (Known(each.reached_by.value), at),
        }
        owner = event.name.rpartition(".")[0]
        if owner.endswith("()"):
            facts["owner"] = (Known(last(owner.removesuffix("()"))), at)
        if wrapper := _wrapper_of(event):
            facts["wrapper"] = (Known(last(wrapper.removesuffix("()"))), at)
        # What comes in another role, or in another order, is missing here.
        missing = each.row.after and not _called_before(each, doubt=2) & set(each.row.after)
        if missing and called & set(each.row.after) and not each.row.on_one_rank:
            facts["early"] = (Known(True), at)
        if _called_before(each, doubt=1) & set(each.row.before):
            facts["late"] = (Known(True), at)
        if each.row.looks_for:
            named = [name for name in each.row.looks_for if any(re.search(rf"\b{name}\(", text) for text in texts)]
            facts["found"] = (Known(tuple(named)), at)
        if each.row.uses:
            facts.update(_uses(each, at))
        for name, node, values in _arguments(each):
            for key, value, where in _facts_of(name, values, Place(event.file, node), 0):
                facts[key] = (value, where)
            if name in _SAMPLERS and samples_other(event, values[0]):
                facts[f"{name}.of_other"] = (Known(True), Place(event.file, node))
        for name, (value, where) in facts.items():
            claim: Claim = new(f"{prefix}{name}", value, where)
            known = stated.get(place_of(claim.quantity, claim.span)) or _key_claim(stated, claim.quantity, event)
            if known is None or _is_better(name, value, known, texts, is_certain=not event.doubt):
                yield replace(claim, source=SOURCE, because=(replace(place, source=SOURCE),))


def _wrapper_of(event: Event) -> str:
    """Return the name of the wrapper that the model of the called method was taken from; empty if there is none."""
    model = event.function.of if event.function is not None else None
    if model is not None:
        return model.wrapped_by
    owner, _, taken = event.name.rpartition(".")[0].rpartition(".")
    return owner if taken == "module" else ""


def _uses(each: ReachedCall, at: Place) -> Iterator[tuple[str, tuple[Value, Place]]]:
    """Yield the program's uses of a call's result and of its arguments: `.half()`, `clip_grad_norm_(_`.

    The object's name is left out where one of its methods is called, and is `_` in the arguments of another call.
    """
    event = each.events[0]
    number = next(n for n, other in enumerate(each.around) if other is event)
    parts: dict[str, tuple[Sequence[Event], Callable[[Any], bool]]] = {
        "then": (each.around[number + 1 :], partial(_is_result, event))
    }
    for name, _, values in _arguments(each):
        if isinstance(values[0], (External, Instance)):
            parts[f"{name}.before"] = (each.around[:number], partial(operator.is_, values[0]))
            parts[f"{name}.after"] = (each.around[number + 1 :], partial(operator.is_, values[0]))
            parts[f"{name}.parts_after"] = (each.around[number + 1 :], partial(_is_part_of, values[0]))
    for key, (events, is_meant) in parts.items():
        found = tuple(dict.fromkeys(filter(None, (_use(other, is_meant) for other in events))))
        if found:
            yield key, (Known(found[:_MAX_USES]), at)


def _use(event: Event, is_meant: Callable[[Any], bool]) -> str:
    """Return how a call uses an object; empty if it does not."""
    owner = _owner(event.function, is_meant)
    if owner is not None:
        given = ", ".join(map(ast.unparse, (*event.node.args, *(each.value for each in event.node.keywords))))
        return f"{event.name.removeprefix(owner)}({given})"
    values = (*event.arguments, *event.keywords.values())
    return f"{event.name or 'unknown'}(_" if any(_owner(value, is_meant) is not None for value in values) else ""


def early_optimizers(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield optimizers of models that FSDP divides later, each with the call that divides, which replaces the
    parameters.
    """
    optimizers = [(number, event) for number, event in enumerate(events) if OPTIMIZER.fullmatch(last(event.name))]
    for number, divided in enumerate(events) if optimizers else ():
        if last(divided.name) not in ("FullyShardedDataParallel", "fully_shard") or not divided.arguments:
            continue
        if divided.keywords.get("use_orig_params", False) is not False:
            continue
        model = divided.arguments[0]
        taking = [(n, event) for n, event in optimizers if _use(event, partial(operator.is_, model))]
        made = [n for n, event in optimizers if _use(event, partial(_is_result, divided))]
        early = [event for n, event in taking if n < number]
        if early and not made and not any(n > number and not event.excludes(divided) for n, event in taking):
            yield early[-1], divided


def _is_part_of(whole: External | Instance, value: Any) -> bool:
    """Return whether a value is an attribute of an object."""
    own = whole.attributes.values() if isinstance(whole, Instance) else ()
    return (isinstance(value, External) and value.owner is whole) or any(value is each for each in own)


def _is_result(event: Event, value: Any) -> bool:
    return isinstance(value, External) and value.call is event.node


def _owner(value: Any, is_meant: Callable[[Any], bool]) -> str | None:
    """Return the name of the object with this method, or whose result this is; None for another object."""
    if is_meant(value):
        return value.name if isinstance(value, External) else ""
    while isinstance(value, External):
        if is_meant(value):
            return value.name
        if value.of is not None and is_meant(value.of):
            return value.name.partition("().")[0] + "()"
        value = value.owner
    return None


def _key_claim(stated: Mapping[tuple[str, str, int, int], Claim], quantity: str, event: Event) -> Claim | None:
    """Return the claim about a key within a call, located at the key there."""
    end = event.node.end_lineno or event.node.lineno
    inside = (
        claim
        for (name, path, line, _), claim in stated.items()
        if name == quantity and path == event.file.path and event.node.lineno <= line <= end
    )
    return next(inside, None) if quantity.count(".") > _DEPTH_OF_ARGUMENT else None


def _is_better(name: str, value: Value, known: Claim, texts: Collection[str], *, is_certain: bool) -> bool:
    """Return whether a run shows something better than the text does; `is_certain` if it certainly makes the call."""
    if isinstance(value, Unresolved):
        return False
    if name == "then" or name.endswith((".before", ".after", ".parts_after")):
        # The text shows one function, the run all of them.
        return True
    if name.endswith(f".{MAKER}") and known.value != value:
        # The text shows the user-defined function that returns an object, the run the class that it is of.
        return isinstance(known.value, Known) and any(f"def {known.value.value}(" in text for text in texts)
    return (
        isinstance(known.value, Unresolved)
        or (is_certain and name == "reached_by" and known.value == Known(RankSet.UNDECIDED.value))
        or known.strength is not Strength.FLAG
        or (is_certain and bool(known.condition))
    )


def place_of(quantity: str, span: Span) -> tuple[str, str, int, int]:
    """Return a key that identifies a claim."""
    return quantity, span.path, span.line, span.column


def _called_before(each: ReachedCall, *, doubt: int) -> set[str]:
    """Return the calls before a call, by the last parts of the names, with at most this much doubt."""
    first = each.events[0]
    found: set[str] = set()
    for event in each.around:
        if event is first:
            break
        name = last(event.name)
        # Any run of an executor but that of the startup program comes after the workers are there.
        if event.doubt <= doubt and (name != "run" or "startup" in ast.unparse(event.node)):
            found.add(name)
    return found


def _arguments(each: ReachedCall) -> Iterator[tuple[str, ast.AST, list[Any]]]:
    """Yield the arguments of a call by name, each with its place and values."""
    first = each.events[0]
    for position, name in enumerate(each.row.positions[: len(first.arguments)]):
        node = first.node.args[position] if position < len(first.node.args) else first.node
        if not isinstance(node, ast.Starred):
            yield name, node, [event.arguments[position] for event in each.events if position < len(event.arguments)]
    for keyword in first.node.keywords:
        written = {other.arg for other in first.node.keywords}
        # A dictionary that is spread gives the others.
        for name in [keyword.arg] if keyword.arg else first.keywords.keys() - written:
            if not is_secret(name) and name in first.keywords:
                yield name, keyword, [event.keywords.get(name) for event in each.events]


def _facts_of(key: str, values: Sequence[Any], at: Place, depth: int) -> Iterator[tuple[str, Value, Place]]:
    """Yield the facts about the value of an argument, each with its place."""
    value = values[0]
    shown = {_shown(each) for each in values}
    if depth > _MAX_DEPTH:
        return
    if key in _ALIKE and any(isinstance(each, Own) for each in map(mixed, values)):
        yield f"{key}.differs", Known(True), at
    if any(map(is_sized_by_rank, values)):
        yield f"{key}.sized_by_rank", Known(True), at
    if len(shown) > 1:
        yield key, Unresolved("it differs between calls"), at
        return
    if isinstance(value, DictValue) and value.items is not None:
        yield key, Known(SECTION), at
        for name, item in value.items.items():
            if isinstance(name, str) and not is_secret(name):
                yield from _facts_of(f"{key}.{name}", [item], at, depth + 1)
        return
    try:
        found = native(value)
        plain = tuple(found) if isinstance(found, (list, set)) else found
        is_plain = not isinstance(plain, (dict, bytes)) and not (isinstance(plain, tuple) and _is_nested(plain))
        yield key, Known(plain) if is_plain else Unresolved("it is not a plain value"), at
    except NotKnown:
        yield key, Unresolved("it is known only at run time"), at
    if isinstance(value, (ListValue, tuple)):
        items = value.items if isinstance(value, ListValue) else value
        if items is not None:
            yield f"{key}.{ITEMS}", Known(len(items)), at
    maker = _maker(value)
    if maker:
        yield f"{key}.{MAKER}", Known(maker), at
    if isinstance(value, External) and value.call is not None and value.file is not None:
        yield f"{key}.arguments", Known(len(value.arguments) + len(value.keywords)), at
        for name, node, item in _constructor_arguments(value.call, maker, value.arguments, value.keywords):
            yield from _facts_of(f"{key}.{name}", [item], Place(value.file, node), depth + 1)
    if key in _MEETING_PLACES and all(isinstance(each, Own) and not each.of_rank for each in map(mixed, values)):
        yield f"{key}.of_each_process", Known(True), at
    if all(map(is_sized_by_data, values)):
        yield f"{key}.sized_by_data", Known(True), at
    if isinstance(value, Instance) and value.owner.foreign is not None:
        yield f"{key}.extends", Known(value.owner.foreign.last), at


def _constructor_arguments(
    call: ast.Call, maker: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, ast.AST, Any]]:
    """Yield the arguments of the call that made an object, by name, each with its place."""
    positions = next((row.positions for row in calls().by_name.get(maker, ())), ())
    yield from zip(positions, call.args, arguments, strict=False)
    for keyword in call.keywords:
        if keyword.arg in keywords and keyword.arg is not None and not is_secret(keyword.arg):
            yield keyword.arg, keyword, keywords[keyword.arg]


def _is_nested(items: Sequence[Any]) -> bool:
    return any(isinstance(item, (tuple, list, dict, set)) for item in items)


def _maker(value: Any) -> str:
    """Return the class or function that an object comes from; empty if unknown."""
    if isinstance(value, Instance):
        return value.owner.node.name
    if isinstance(value, External):
        name = value.last.removesuffix("()")
        is_class = name[:1].isupper() or (value.name.startswith("torch.") and value.name.count(".") == 1)
        return name if value.name.endswith("()") or is_class else ""
    return ""


def _shown(value: Any) -> str:
    try:
        return repr(native(value))
    except NotKnown:
        return _maker(value) or "unknown"
