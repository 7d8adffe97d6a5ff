"""Over which addresses connections between nodes really went: other ways there and back, and translated addresses."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.matrix import Cell
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold, is_literal, stand_ins
from preflight_checks.links.dialling import FREE, cells, coverage, plan_links
from preflight_checks.network.interface_filter import subnet
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Target, dial


@check(
    "LNK008",
    "way-back-differs",
    plan=plan_links,
    probes=(dial, listen, interfaces),
    cost="nothing beyond what the other link checks try",
    when="link",
    severity=Severity.INFO,
    evidence=("NVIDIA/nccl#1105", "marin-community/marin#7018"),
)
def way_back_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Connections come from the network at which the node itself is dialled, and under its own address.

    What it checks: of each connection the address it was opened from, and the address the other node saw it come from,
    against the interface whose address the others dial.

    Why it matters: there and back then take different ways, one of which may be the management network, slow, or closed
    by a strict rp_filter tomorrow; and behind address translation nobody can dial back whom a connection came from.

    Example: node3 is dialled at 10.77.0.3 (eth0), and its own connections come from 10.78.0.3 (eth1).

    Fix: compare `ip route` on the named node with another one's; give the ranks the host's network.

    Known limits: TCP on the ports that the kernel picks. It connects, so that this is no more than a hint; NIC002 and
    NIC007 judge the routes themselves.

    Evidence: NVIDIA/nccl#1105, marin-community/marin#7018.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("ways back", "the job has one node")
        return
    if stand_ins(fleet):
        yield not_applicable("ways back", "all nodes are this machine")
        return
    tried = [cell for cell in cells(facts) if cell.label == FREE and cell.result.source]
    if not tried:
        yield unknown("ways back", "no connection came about")
        return
    have = {
        node: {address.address: item for item in seen.interfaces for address in item.addresses}
        for node, seen in facts.observed(interfaces).items()
    }
    dialled_at: dict[str, set[str]] = {}
    for cell in tried:
        dialled_at.setdefault(cell.peer, set()).add(cell.result.address)
    dialled = {
        node: [own[address] for address in dialled_at.get(node, ()) if address in own] for node, own in have.items()
    }
    other = [cell for cell in tried if _takes_another_way(cell, dialled, have)]
    translated = [
        cell
        for cell in tried
        if cell.result.seen_as
        and is_literal(cell.result.seen_as)
        and cell.result.seen_as not in have.get(cell.source, {cell.result.seen_as: None})
    ]
    for node in dict.fromkeys(cell.source for cell in other):
        yield _other_way([cell for cell in other if cell.source == node], dialled_at, have)
    for node in dict.fromkeys(cell.source for cell in translated):
        yield _translated([cell for cell in translated if cell.source == node])
    if not other and not translated:
        yield passed(coverage(fleet))


Addresses = dict[str, dict[str, Interface]]


def _takes_another_way(cell: Cell[Target], dialled: dict[str, list[Interface]], have: Addresses) -> bool:
    """Whether the connection left through an interface, in a network, at which nobody dials its node."""
    used = have.get(cell.source, {}).get(cell.result.source)
    usual = dialled.get(cell.source, [])
    if used is None or used.loopback or not usual or used in usual:
        return False
    return not {subnet(address) for address in used.addresses} & {
        subnet(address) for item in usual for address in item.addresses
    }


def _other_way(group: list[Cell[Target]], dialled_at: dict[str, set[str]], have: Addresses) -> Verdict:
    first = group[0]
    node, source = first.source, first.result.source
    usual = fold(
        f"{address} ({have[node][address].name})" for address in sorted(dialled_at[node]) if address in have[node]
    )
    peers = fold(cell.peer for cell in group)
    return failed(
        f"ways back of {node}",
        f"connections of {node} to {peers} come from {source} ({have[node][source].name}), while the others dial it at "
        f"{usual}: there and back they take different ways",
        at=Evidence(
            f"connection to {first.peer}",
            f"from {source}",
            f"from {usual}",
            f"ip route get {first.result.address}",
            node,
            first.at_s,
        ),
        nodes=(node,),
        remedy=f"Compare `ip route` on {node} with another node's.",
    )


def _translated(group: list[Cell[Target]]) -> Verdict:
    first = group[0]
    node, seen_as = first.source, first.result.seen_as
    return failed(
        f"translated addresses of {node}",
        f"{fold(cell.peer for cell in group)} see the connections of {node} come from {seen_as}, which is no address "
        "of it: something on the way translates addresses",
        at=Evidence(
            f"connection to {first.peer}", f"seen as {seen_as}", first.result.source, "ip -br addr", node, first.at_s
        ),
        nodes=(node,),
        remedy="Give the ranks the host's network (hostNetwork, --network host), or an overlay without translation.",
    )
