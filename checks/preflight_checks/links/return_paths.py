"""Checks the addresses that connections between nodes used: asymmetric routes and address translation."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.analysis.link_matrix import Cell
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.links.dial_requests import FREE, cells, coverage, plan_links
from preflight_checks.network.interface_filter import subnet
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Target, dial
from preflight_checks.requirements import fold, is_literal, nodes_share_machine


@check(
    "LNK008",
    "way-back-differs",
    plan=plan_links,
    probes=(dial, listen, interfaces),
    cost="nothing beyond the other link checks",
    when="link",
    severity=Severity.INFO,
    evidence=("NVIDIA/nccl#1105", "marin-community/marin#7018"),
)
def return_path_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Connections of a node come from the network at which it is dialled, and from its own address.

    What it checks: the source address of each connection, on both nodes, compared with the interface whose address the
    others dial.

    Why it matters: the two directions then use different networks, one of which may be the slow management network or
    be blocked by a strict rp_filter. Behind address translation, peers cannot connect back to the source of a
    connection.

    Example: node3 is dialled at 10.77.0.3 (eth0), and its own connections come from 10.78.0.3 (eth1).

    Fix: compare `ip route` on the named node with that of another; give the ranks the host's network.

    Known limits: only TCP on ports that the kernel picks. Connections succeed, so this is only a hint; NIC002 and
    NIC007 judge the routes themselves.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("ways back", "the job has one node")
        return
    if nodes_share_machine(fleet):
        yield not_applicable("ways back", "all nodes are this machine")
        return
    tried = [cell for cell in cells(facts) if cell.label == FREE and cell.result.source]
    if not tried:
        yield unknown("ways back", "no connection was established")
        return
    observed = {
        node: {address.address: item for item in seen.interfaces for address in item.addresses}
        for node, seen in facts.observed(interfaces).items()
    }
    dialled_at: dict[str, set[str]] = {}
    for cell in tried:
        dialled_at.setdefault(cell.peer, set()).add(cell.result.address)
    dialled = {
        node: [own[address] for address in dialled_at.get(node, ()) if address in own] for node, own in observed.items()
    }
    other = [cell for cell in tried if _takes_another_path(cell, dialled, observed)]
    translated = [
        cell
        for cell in tried
        if cell.result.seen_as
        and is_literal(cell.result.seen_as)
        and cell.result.seen_as not in observed.get(cell.source, {cell.result.seen_as: None})
    ]
    for node in dict.fromkeys(cell.source for cell in other):
        yield _other_path_finding([cell for cell in other if cell.source == node], dialled_at, observed)
    for node in dict.fromkeys(cell.source for cell in translated):
        yield _translation_finding([cell for cell in translated if cell.source == node])
    if not other and not translated:
        yield passed(coverage(fleet, facts))


Addresses = dict[str, dict[str, Interface]]


def _takes_another_path(cell: Cell[Target], dialled: dict[str, list[Interface]], observed: Addresses) -> bool:
    """Whether the connection left through an interface and network at which no peer dials its node."""
    used = observed.get(cell.source, {}).get(cell.result.source)
    usual = dialled.get(cell.source, [])
    if used is None or used.loopback or not usual or used in usual:
        return False
    return not {subnet(address) for address in used.addresses} & {
        subnet(address) for item in usual for address in item.addresses
    }


def _other_path_finding(group: list[Cell[Target]], dialled_at: dict[str, set[str]], observed: Addresses) -> Verdict:
    first = group[0]
    node, source = first.source, first.result.source
    usual = fold(
        f"{address} ({observed[node][address].name})"
        for address in sorted(dialled_at[node])
        if address in observed[node]
    )
    peers = fold(cell.peer for cell in group)
    return failed(
        f"return paths of {node}",
        f"connections of {node} to {peers} come from {source} ({observed[node][source].name}),"
        f" while the others connect to it at {usual}: the two directions use different paths",
        at=Evidence(
            f"connection to {first.peer}",
            f"from {source}",
            f"from {usual}",
            f"ip route get {first.result.address}",
            node,
            first.at_s,
        ),
        remedy=f"Compare `ip route` on {node} with another node's.",
    )


def _translation_finding(group: list[Cell[Target]]) -> Verdict:
    first = group[0]
    node, seen_as = first.source, first.result.seen_as
    return failed(
        f"translated addresses of {node}",
        f"{fold(cell.peer for cell in group)} see the connections of {node} come from {seen_as}, which is not one of "
        "its addresses: something on the path translates addresses",
        at=Evidence(
            f"connection to {first.peer}", f"seen as {seen_as}", first.result.source, "ip -br addr", node, first.at_s
        ),
        remedy="Give the ranks the host's network (hostNetwork, --network host), or an overlay without translation.",
    )
