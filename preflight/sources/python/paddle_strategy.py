"""Claims about fleet.DistributedStrategy: update mode, parallel degrees, pipeline, and enabled features.

Source: paddle/distributed/fleet/base/distributed_strategy.py of PaddlePaddle 2.6.2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value, alternatives, lift
from preflight.model.job.value import SECTION, SETTING_PREFIX, Plain
from preflight.sources.formats.structured import value_of
from preflight.sources.python.module import Assigned, Module, argument, attributes, enclosing
from preflight.sources.python.outline import dotted
from preflight.sources.python.shards import setting_of
from preflight.sources.python.words import WORDS

_HYBRID = {
    "dp_degree": "data_parallel_size",
    "mp_degree": "tensor_parallel_size",
    "pp_degree": "pipeline_parallel_size",
    "sep_degree": "context_parallel_size",
    "sharding_degree": "sharding_degree",
}
_PIPELINE = {"accumulate_steps": "pipeline_micro_batches", "micro_batch_size": "pipeline_micro_batch_size"}
#: Booleans of the strategy whose optimizer only applies to certain inner optimizers, or in collective training.
SWITCHES = frozenset(WORDS["paddle_switches"])


#: Dictionaries within each other that are read.
_MAX_DEPTH = 3
#: Assignments to one strategy that are read; more are not configuration.
_MAX_SETTINGS = 200


def unused_strategies(module: Module) -> Iterator[Claim]:
    """Yield the `fleet.init` that gets no strategy although the script sets one up that nothing else takes.

    Source: paddle/distributed/fleet/fleet.py of 3.3 (init creates a default strategy).
    """
    starts = [call for call in module.named("init") if module.called(call).endswith("fleet.init")]
    if (
        len(starts) != 1
        or argument(starts[0], "strategy", 2) is not None
        or any(each.arg is None for each in starts[0].keywords)
    ):
        return
    for made in module.named("DistributedStrategy"):
        names = {module.bound_to(made)} - {""}
        function = module.outline.function_of(made)
        # What a function returns has the name that its caller gives it.
        returned = [node for node in module.nodes(ast.Return) if module.outline.function_of(node) is function]
        if function is not None and any(node.value is not None and dotted(node.value) in names for node in returned):
            names = {module.bound_to(call) for call in module.outline.calls_named(function.name)} - {""} | names
        given = {dotted(each) for call in module.calls for each in (*call.args, *(k.value for k in call.keywords))}
        kept = {dotted(node.value) for node in module.nodes(ast.Assign)}
        is_set = any(
            isinstance(target, ast.Attribute) and dotted(target.value) in names
            for node in module.nodes(ast.Assign)
            for target in node.targets
        )
        if names and is_set and not names & (given | kept):
            yield module.feature("strategy_unused", starts[0], made)
            return


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about strategies that the script itself creates."""
    # Fluid's classes of this name have other attributes.
    made = [call for call in module.named("DistributedStrategy") if "fluid.incubate" not in module.called(call)]
    if not made:
        return
    assigned = attributes(module)
    if len(made) == 1:
        # Of several it is not known which one Fleet is given.
        yield from _settings(module, truncate(assigned.get(module.bound_to(made[0]), []), _MAX_SETTINGS, "settings"))
    yield from _emptied_degrees(module, made, assigned)
    for name in dict.fromkeys(module.bound_to(call) for call in made):
        if name:
            yield from _strategy(module, truncate(assigned.get(name, []), _MAX_SETTINGS, "settings of a strategy"))


def _emptied_degrees(module: Module, made: Sequence[ast.Call], assigned: dict[str, list[Assigned]]) -> Iterator[Claim]:
    """Yield a dictionary of degrees that is given to a second strategy: the first one takes its inner settings out of
    it.
    """
    used: set[str] = set()
    owners = list(dict.fromkeys(module.bound_to(call) for call in made))
    items = [item for owner in owners for item in assigned.get(owner, []) if item.name == "hybrid_configs"]
    for item in sorted(items, key=lambda each: each.at.lineno):
        table = _table(module, item.value)
        if not isinstance(item.value, ast.Name) or not isinstance(table, ast.Dict):
            continue
        keys = {key.value for key in table.keys if isinstance(key, ast.Constant)}
        if item.value.id in used and keys & {"mp_configs", "pp_configs"}:
            yield module.claim("script_feature", "strategy_dictionary_emptied", item.at, source="paddle")
        used.add(item.value.id)


def _settings(module: Module, given: Sequence[Assigned]) -> Iterator[Claim]:
    """Yield every attribute that is set, and every key of its dictionary, as `setting.paddle.NAME`."""
    for item in given:
        if not is_secret(item.name):
            yield from _setting(module, item.name, item.value, item.at, 0)


def _setting(module: Module, path: str, value: ast.expr, at: ast.AST, depth: int) -> Iterator[Claim]:
    table = _table(module, value)
    start, _ = module.positions.bounds(at)
    _, end = module.positions.bounds(value)
    spelling = " ".join(module.file.text[start:end].split())[:120]
    folded = Known(SECTION) if isinstance(table, ast.Dict) else module.fold(value)
    yield module.claim(f"{SETTING_PREFIX}paddle.{path}", folded, at, spelling=spelling, source="paddle")
    for key, inner in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
        name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
        if name and not is_secret(name) and depth < _MAX_DEPTH and key is not None:
            yield from _setting(module, f"{path}.{name}", inner, key, depth + 1)


def _strategy(module: Module, settings: Sequence[Assigned]) -> Iterator[Claim]:
    switched: list[Assigned] = []
    configured: list[tuple[Assigned, Value]] = []
    for item in settings:
        if item.name == "a_sync":
            switched.append(item)
        elif item.name == "a_sync_configs":
            configured.append((item, _entry(module, item, "k_steps")))
        elif item.name == "hybrid_configs":
            yield from _hybrid(module, item)
        elif item.name == "pipeline_configs":
            yield from _entries(module, item, _PIPELINE)
        elif item.name in SWITCHES and module.fold(item.value) == Known(True):
            yield module.claim("fleet_switch", item.name, item.at, source="paddle")
    yield from _update_mode(module, switched, configured)


def _update_mode(
    module: Module, switched: Sequence[Assigned], configured: Sequence[tuple[Assigned, Value]]
) -> Iterator[Claim]:
    """Yield claims about the update mode: `a_sync` and `k_steps` decide together when gradients are applied; setting
    `a_sync` sets `k_steps` to 0.
    """
    for item in switched:
        before = [pair for pair in configured if _precedes(module, pair[0], item)]
        after = [
            pair for pair in configured if pair not in before and not _is_superseded(module, switched, item, pair[0])
        ]
        same_branch = bool(after) and _precedes(module, item, after[-1][0])
        steps: Value = after[-1][1] if after else Known(0)
        if after and not same_branch and module.condition(after[-1][0].at):
            steps = Unresolved("a_sync_configs is set in another branch")
        yield module.claim("ps_update_mode", lift(_mode, module.fold(item.value), steps), item.at, source="paddle")
        if module.fold(item.value) == Known(False) and same_branch and _always_positive(steps):
            reason = module.claim("ps_update_mode", "sync", item.at, source="paddle")
            yield module.claim("geo_steps_refused", steps, after[-1][0].at, source="paddle", because=(reason,))
        for lost, value in before if not after else ():
            if any(isinstance(number, int) and number > 0 for number in alternatives(value)):
                reason = module.claim("ps_update_mode", "async", item.at, source="paddle")
                yield module.claim("a_sync_configs_lost", value, lost.at, source="paddle", because=(reason,))
    for item, value in configured:
        if not isinstance(value, Unresolved):
            yield module.claim("geo_steps", value, item.at, source="paddle")


def _always_positive(value: Value) -> bool:
    found = alternatives(value)
    return bool(found) and all(isinstance(number, int) and number > 0 for number in found)


def _precedes(module: Module, first: Assigned, second: Assigned) -> bool:
    return (
        first.at.lineno < second.at.lineno
        and enclosing(module, first.at) is enclosing(module, second.at)
        and module.condition(first.at) == module.condition(second.at)
    )


def _is_superseded(module: Module, switched: Sequence[Assigned], item: Assigned, later: Assigned) -> bool:
    """Return whether `later` follows another assignment to `a_sync` in its own branch, so that it does not go with
    `item`.
    """
    return any(
        other is not item and item.at.lineno < other.at.lineno and _precedes(module, other, later) for other in switched
    )


def _mode(asynchronous: Plain, steps: Plain) -> Plain:
    if not isinstance(asynchronous, bool):
        raise TypeError("a_sync must be true or false")
    if not asynchronous:
        return "sync"
    return "geo" if isinstance(steps, int) and steps > 0 else "async"


def _entry(module: Module, item: Assigned, key: str) -> Value:
    table = _table(module, item.value)
    if not isinstance(table, ast.Dict):
        return Unresolved(f"{module.text(item.value)}: known only at run time")
    for name, value in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            return module.fold(value)
    return Known(0)


def _entries(module: Module, item: Assigned, quantities: dict[str, str]) -> Iterator[Claim]:
    table = _table(module, item.value)
    setting = setting_of(module, table) if isinstance(table, ast.Subscript) else None
    for key, quantity in quantities.items() if setting is not None else ():
        member = setting.node.member(key) if setting is not None else None
        if member is not None:
            spelling = f'"{key}": {member.node.value}'
            yield module.claim(quantity, value_of(member.node), item.value, spelling=spelling, source="paddle")
    if not isinstance(table, ast.Dict):
        return
    for name, value in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and name.value in quantities:
            start, _ = module.positions.bounds(name)
            _, end = module.positions.bounds(value)
            spelling = " ".join(module.file.text[start:end].split())[:120]
            found = module.fold(value)
            yield module.claim(quantities[str(name.value)], found, value, spelling=spelling, source="paddle")


def _table(module: Module, value: ast.expr) -> ast.expr:
    """Return a value with `dict(a=1)` as `{"a": 1}`."""
    found = module.definition(value)
    if isinstance(found, ast.Call) and module.called(found) == "dict" and not found.args:
        if any(item.arg is None for item in found.keywords):
            return found
        keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(item.arg), item) for item in found.keywords]
        return ast.copy_location(ast.Dict(keys, [item.value for item in found.keywords]), found)
    return found


def _hybrid(module: Module, item: Assigned) -> Iterator[Claim]:
    """Yield the degrees of `hybrid_configs`; Fleet determines a degree that is not above 0."""
    table = _table(module, item.value)
    if not isinstance(table, ast.Dict) or None in table.keys:
        yield module.claim(
            "fleet_hybrid", Unresolved("the degrees are known only at run time"), item.at, source="paddle"
        )
        return
    names: list[str] = []
    for claim in _entries(module, item, _HYBRID):
        names.append(claim.quantity)
        if not any(isinstance(number, int) and number < 1 for number in claim.alternatives):
            yield claim
    yield module.claim("fleet_hybrid", tuple(names), item.at, spelling=module.text(item.at)[:120], source="paddle")
