"""Checks that RoCE ports use a usable address (GID), of the same kind on every node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, memoize, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.probes.rdma import Gid
from preflight_checks.rdma.devices import blind, rdma_check
from preflight_checks.rdma.port_choice import Port, applies, ports_by_node, variable_value
from preflight_checks.requirements import backends, fold

EMPTY = "an empty entry"


@dataclass(frozen=True, slots=True)
class ChosenGid:
    """The GID that a port will use; `kind` describes it in words that can be compared between nodes."""

    port: Port
    index: int
    gid: Gid | None

    @property
    def kind(self) -> str:
        """`a RoCE v2 IPv4 address`, `a RoCE v1 link-local address`, `an empty entry`."""
        if self.gid is None:
            return EMPTY
        version = f"RoCE v{self.gid.version}" if self.gid.version else "RoCE"
        return f"a {version} {family(self.gid)} address"

    @property
    def is_usable(self) -> bool:
        """Whether other nodes can answer it over any network: version 2 and routable."""
        return self.gid is not None and self.gid.version != 1 and family(self.gid) != "link-local"

    @property
    def better(self) -> Gid | None:
        """A usable entry of the port's table; None if it has none."""
        for gid in self.port.port.gids:
            if gid.version == 2 and family(gid) != "link-local":
                return gid
        return None

    @property
    def description(self) -> str:
        """The index and content of the entry, for messages."""
        return f"index {self.index}: {address(self.gid) if self.gid else 'empty'}"


def family(gid: Gid) -> str:
    """`IPv4` (mapped), `link-local` or `IPv6`, as NCCL distinguishes them (net_ib/connect.cc)."""
    try:
        found = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return "unreadable"
    if found.ipv4_mapped is not None:
        return "link-local" if found.ipv4_mapped.is_link_local else "IPv4"
    return "link-local" if found.is_link_local else "IPv6"


def address(gid: Gid) -> str:
    """The address in a GID, in its usual notation."""
    try:
        found = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return gid.gid
    return str(found.ipv4_mapped or found)


def automatic(gids: Sequence[Gid], wanted_family: str = "IPv4", version: int = 2) -> Gid | None:
    """The GID that NCCL 2.21 and later choose: a valid one of the family, preferably of the version.

    The search starts at index 0 and moves on to later entries that fit better (ncclIbGetGidIndex).
    """
    valid = [gid for gid in gids if family(gid) == wanted_family]
    for gid in valid:
        if gid.version == version:
            return gid
    return valid[0] if valid else next((gid for gid in gids if gid.index == 0), None)


def _setting(job: Job, node: str = "") -> tuple[str, int | None, tuple[Claim, ...]]:
    """The variable that names the index, the index (None: automatic), and the claims."""
    names, _claims = backends(job)
    variable = "NCCL_IB_GID_INDEX" if "nccl" in names else "UCX_IB_GID_INDEX"
    found = variable_value(job, variable, node)
    value = found.value if found is not None else ""
    index = int(value) if is_whole_number(value) else None
    return variable, index, found.claims if found is not None else ()


@memoize
def chosen_gids(job: Job, facts: Facts) -> dict[str, list[ChosenGid]]:
    """The GID of every active RoCE port in use, by node."""
    found: dict[str, list[ChosenGid]] = {}
    six = variable_value(job, "NCCL_IB_ADDR_FAMILY")
    wanted = "IPv6" if six is not None and six.value == "AF_INET6" else "IPv4"
    number = variable_value(job, "NCCL_IB_ROCE_VERSION_NUM")
    version = int(number.value) if number is not None and is_whole_number(number.value) else 2
    for node, ports in ports_by_node(job, facts).items():
        _variable, index, _claims = _setting(job, node)
        for item in ports:
            if not item.port.active or item.port.link_layer != "Ethernet":
                continue
            if index is None:
                gid = automatic(item.port.gids, wanted, version)
                found.setdefault(node, []).append(ChosenGid(item, gid.index if gid is not None else 0, gid))
            else:
                at = [gid for gid in item.port.gids if gid.index == index]
                found.setdefault(node, []).append(ChosenGid(item, index, at[0] if at else None))
    return found


@rdma_check(
    "RDM006",
    "roce-gid-unusable",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#426", "NVIDIA/nccl#769", "NVIDIA/nccl#1131", "pytorch/pytorch#81628", "openucx/ucx#7785"),
)
def gid_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The GID that each RoCE port uses is a routable RoCE v2 address, and of one kind on all nodes.

    What it checks: the entry that NCCL_IB_GID_INDEX names in the table of every RoCE port in use (UCX_IB_GID_INDEX for
    UCX), or the one NCCL from 2.21 on chooses; it must not be empty, link-local or of RoCE v1, and must be of
    the same kind on all nodes.

    Why it matters: connections are set up over TCP and then time out ("error 12", "ibv_modify_qp failed with error
    Connection timed out"), on all nodes alike.

    Example: NCCL_IB_GID_INDEX=3 is ::ffff:10.0.0.4 RoCE v2 on three nodes, and empty on node2, whose interface has no
    IPv4 address.

    Fix: give the interface behind the card its address; leave NCCL_IB_GID_INDEX out (NCCL 2.21 and later), or name the
    index that `show_gids` prints for the RoCE v2 IPv4 address.

    Known limits: whether the address can be reached is not tested. Some switches carry link-local or version 1 within
    one segment: if the table holds nothing better and all nodes agree, it is a warning.
    """
    yield from blind(job, fleet, facts, "GIDs")
    found = chosen_gids(job, facts) if applies(job, fleet) is not None else {}
    if not found:
        if any(port.port.active for ports in ports_by_node(job, facts).values() for port in ports):
            yield not_applicable("GIDs", "no port in use is RoCE")
        elif any(ports_by_node(job, facts).values()) and applies(job, fleet) is not None:
            yield unknown("GIDs", "no port in use is active")
        return
    variable, index, claims = _setting(job)
    spelled = f"{variable}={index}" if index is not None else "the GID that NCCL chooses"
    faults: dict[tuple[str, bool, bool], dict[str, ChosenGid]] = {}
    for name in dict.fromkeys(item.port.name for items in found.values() for item in items):
        on = {node: item for node, items in found.items() for item in items if item.port.name == name}
        parts = split({node: item.kind for node, item in on.items()})
        assert parts is not None
        mixed = bool(parts.odd)
        bad = {node: item for node, item in on.items() if not item.is_usable}
        for node, item in (bad or {node: on[node] for node in parts.odd}).items():
            # A port that is equal on all nodes may belong to storage, unless the job names its GID.
            certain = mixed or (index is not None and (item.better is not None or item.kind == EMPTY))
            faults.setdefault((item.kind, mixed, certain), {})[f"{name} on {node}"] = item
    for (kind, mixed, certain), same_nodes in faults.items():
        yield _finding(spelled, kind, same_nodes, claims, mixed=mixed, certain=certain)
    if not faults:
        yield passed(f"GIDs of {sum(map(len, found.values()))} ports")


def _finding(
    spelled: str, kind: str, same_nodes: dict[str, ChosenGid], claims: tuple[Claim, ...], *, mixed: bool, certain: bool
) -> Verdict:
    where, some = next(iter(same_nodes.items()))
    nodes = list(dict.fromkeys(name.split(" on ")[1] for name in same_nodes))
    better = some.better
    rest = ", and something else on the other nodes" if mixed else ""
    hint = f"; index {better.index} is {address(better)}, RoCE v2" if better is not None else ""
    return failed(
        f"GIDs: {kind}",
        f"{spelled} is {kind} on {fold(same_nodes)}{rest} ({where}: {some.description}{hint})",
        at=Evidence("GID", some.description, "a routable RoCE v2 address", "show_gids", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"Set NCCL_IB_GID_INDEX={better.index}, if it is the same on all nodes, or exclude it (NCCL 2.21 on)."
        if better is not None
        else f"Give the interface behind {some.port.device.name} an IPv4 address on {fold(nodes)}"
        + (f" (`ip addr add ... dev {_interface(some)}`)." if _interface(some) else "."),
        certain=certain,
    )


def _interface(chosen: ChosenGid) -> str:
    return next((gid.interface for gid in chosen.port.port.gids if gid.interface), "")
