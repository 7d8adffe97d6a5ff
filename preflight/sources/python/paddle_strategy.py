"""Claims about fleet.DistributedStrategy: update mode, parallel degrees, pipeline, and what is switched on.

Source: paddle/distributed/fleet/base/distributed_strategy.py of PaddlePaddle 2.6.2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from preflight.job import Claim, Known, Unresolved, Value, alternatives, lift
from preflight.job.value import Plain
from preflight.sources.python.attributes import Assigned, attributes, enclosing
from preflight.sources.python.module import Module, last

_HYBRID = {
    "dp_degree": "data_parallel_size",
    "mp_degree": "tensor_parallel_size",
    "pp_degree": "pipeline_parallel_size",
    "sep_degree": "context_parallel_size",
    "sharding_degree": "sharding_degree",
}
_PIPELINE = {"accumulate_steps": "pipeline_micro_batches", "micro_batch_size": "pipeline_micro_batch_size"}
#: Booleans of the strategy whose optimizer applies to certain inner optimizers, or in collective training, only.
SWITCHES = frozenset(
    (
        "amp",
        "recompute",
        "gradient_merge",
        "sharding",
        "dgc",
        "lamb",
        "lars",
        "localsgd",
        "adaptive_localsgd",
        "pipeline",
        "fp16_allreduce",
        "heter_ccl_mode",
    )
)


#: Assignments to one strategy that are looked at; more are no configuration.
_MOST_SETTINGS = 200


def claims(module: Module) -> Iterator[Claim]:
    """All claims about strategies that the script makes itself."""
    made = [call for call in module.calls if last(module.called(call)) == "DistributedStrategy"]
    if not made:
        return
    assigned = attributes(module)
    for name in dict.fromkeys(module.bound_to(call) for call in made):
        if name:
            yield from _strategy(module, assigned.get(name, [])[:_MOST_SETTINGS])


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
    """`a_sync` and `k_steps` together say when gradients are applied; whoever sets `a_sync` sets `k_steps` to 0."""
    for item in switched:
        before = [pair for pair in configured if _stands_before(module, pair[0], item)]
        after = [pair for pair in configured if pair not in before]
        steps = after[-1][1] if after else Known(0)
        yield module.claim("ps_update_mode", lift(_mode, module.fold(item.value), steps), item.at, source="paddle")
        for lost, value in before if not after else ():
            if any(isinstance(number, int) and number > 0 for number in alternatives(value)):
                reason = module.claim("ps_update_mode", "async", item.at, source="paddle")
                yield module.claim("a_sync_configs_lost", value, lost.at, source="paddle", because=(reason,))
    for item, value in configured:
        if not isinstance(value, Unresolved):
            yield module.claim("geo_steps", value, item.at, source="paddle")


def _stands_before(module: Module, one: Assigned, other: Assigned) -> bool:
    return (
        one.at.lineno < other.at.lineno
        and enclosing(module, one.at) is enclosing(module, other.at)
        and module.condition(one.at) == module.condition(other.at)
    )


def _mode(asynchronous: Plain, steps: Plain) -> Plain:
    if not isinstance(asynchronous, bool):
        raise TypeError("a_sync is true or false")
    if not asynchronous:
        return "sync"
    return "geo" if isinstance(steps, int) and steps > 0 else "async"


def _entry(module: Module, item: Assigned, key: str) -> Value:
    table = module.definition(item.value)
    if not isinstance(table, ast.Dict):
        return Unresolved(f"{module.text(item.value)}: known only at run time")
    for name, value in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            return module.fold(value)
    return Known(0)


def _entries(module: Module, item: Assigned, quantities: dict[str, str]) -> Iterator[Claim]:
    table = module.definition(item.value)
    if not isinstance(table, ast.Dict):
        return
    for name, value in zip(table.keys, table.values, strict=True):
        if isinstance(name, ast.Constant) and name.value in quantities:
            start, _ = module.positions.bounds(name)
            _, end = module.positions.bounds(value)
            spelling = " ".join(module.file.text[start:end].split())[:120]
            found = module.fold(value)
            yield module.claim(quantities[str(name.value)], found, value, spelling=spelling, source="paddle")


def _hybrid(module: Module, item: Assigned) -> Iterator[Claim]:
    """The degrees of `hybrid_configs`; one that is not above 0 is left to Fleet."""
    table = module.definition(item.value)
    if not isinstance(table, ast.Dict):
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
