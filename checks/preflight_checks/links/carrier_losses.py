"""Checks that no interface in use loses its carrier while the run looks at it."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, unknown
from preflight_checks.links.dial_requests import cells
from preflight_checks.network.nic_health import states_in_use
from preflight_checks.plans import missing_facts, multi_node, no_requests
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.links import dial
from preflight_checks.probes.nic_state import carriers, nic_states
from preflight_checks.requirements import is_multi_node

#: From this number of changes on, the carrier was lost more than once: a loss counts twice, and the last one may last.
_REPEATED_CHANGES = 3


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Read the counters again when the links have been tried."""
    if multi_node(job, fleet) and any(True for _ in facts.each(dial)):
        for node in fleet.reached:
            yield Request(probe_name(carriers), node.name)


@memoize
def nodes_without_steady_carrier(facts: Facts) -> frozenset[str]:
    """The nodes with an interface whose carrier changed between the two looks.

    Interfaces that lead to no other machine do not count: those of containers come and go all the time.
    """
    later = facts.observed(carriers)
    outward = _outward(facts)
    return frozenset(
        node
        for node, seen in facts.observed(nic_states).items()
        for state in seen.interfaces
        if node in later
        and (node not in outward or state.name in outward[node])
        and state.carrier_changes is not None
        and later[node].changes.get(state.name, 0) > state.carrier_changes
    )


def _outward(facts: Facts) -> dict[str, set[str]]:
    """The interfaces of each node that other nodes dialled, or that belong to a device."""
    dialled = {cell.result.address for cell in cells(facts)}
    return {
        node: {
            item.name
            for item in seen.interfaces
            if item.kind in ("physical", "") or any(each.address in dialled for each in item.addresses)
        }
        for node, seen in facts.observed(interfaces).items()
    }


@check(
    "NIC013",
    "carrier-lost-meanwhile",
    plan=no_requests,
    follow_up=_plan,
    probes=(nic_states, carriers),
    cost="reads /sys/class/net once more after the links were tried; milliseconds",
    when="link",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1957", ("Linux interface statistics", "https://docs.kernel.org/networking/statistics.html")),
)
def carrier_lost(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The interface in use keeps its carrier between the first and the last look of the run.

    What it checks: carrier_changes of each node's interface in use, read in the node stage and again after the links
    were tried. More than one loss in these seconds is an error, a single one a warning.

    Why it matters: a link that comes and goes passes short tests between two losses. RDMA connections end at once,
    and every loss holds up all ranks.

    Example: eth0 of node3 loses its carrier every 2 seconds, for 0.2 seconds each time.

    Fix: reseat or replace cable and transceiver, and look at the switch port's log.

    Known limits: a loss before or after these seconds is not seen; NIC010 compares the counters since the driver was
    loaded.
    """
    if not is_multi_node(fleet):
        yield not_applicable("carriers", "all nodes are one machine")
        return
    yield from missing_facts(facts, carriers, "carriers")
    later = {seen.node: seen for seen in facts.each(carriers) if isinstance(seen.fact, Observed)}
    began = {seen.node: seen.finished_s for seen in facts.each(nic_states)}
    quiet = 0
    for node, (use, state) in states_in_use(job, facts).items():
        now = later[node].fact if node in later else None
        changes = now.value.changes.get(state.name) if isinstance(now, Observed) else None
        if changes is None or state.carrier_changes is None:
            continue
        lost = changes - state.carrier_changes
        if lost <= 0:
            quiet += 1
            continue
        after_s = (later[node].finished_s or 0.0) - (began.get(node) or 0.0)
        repeated = lost >= _REPEATED_CHANGES
        yield failed(
            f"carrier of {node}",
            f"{state.name} on {node} lost or found its carrier {lost} time{'s' * (lost != 1)} in the {after_s:.1f} s "
            "between two looks",
            at=Evidence(
                "carrier_changes",
                f"{state.carrier_changes}, then {changes}",
                "no change",
                f"cat /sys/class/net/{state.name}/carrier_changes; ip monitor link",
                node,
                later[node].finished_s,
            ),
            also=use.claims,
            remedy=f"Reseat or replace cable and transceiver of {state.name} on {node}, and look at the log of its "
            "switch port.",
            certain=repeated,
        )
    if quiet:
        yield passed(f"carriers of {quiet} nodes")
    elif not later:
        yield unknown("carriers", "no node was looked at a second time")
