"""Checks that the RDMA ports that the job uses are alike and error-free, and of the path between ports and GPUs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, root_command, unknown
from preflight_checks.plans import (
    combine_plans,
    minor_of,
    missing_facts,
    on_every_node,
    only_if,
    split,
    version_of,
    warning_check,
)
from preflight_checks.probes.devices import Pci, pci
from preflight_checks.probes.rdma import Gid, GpuDirect, gpudirect, rdma
from preflight_checks.rdma.devices import (
    Port,
    applicable_demand,
    chosen_ports,
    demand_claims,
    hca_filter,
    plan_rdma,
    ports_by_node,
    rdma_check,
    undecidable_verdicts,
    variable_value,
)
from preflight_checks.requirements import backend_claims, backends, fold

#: NVIDIA's driver of this branch and a kernel of this version are the first that export GPU memory as a dma-buf.
DMABUF_DRIVER, DMABUF_KERNEL = 515, (5, 12)


@check(
    "RDM008",
    "gpudirect-rdma-missing",
    plan=combine_plans(plan_rdma, on_every_node(gpudirect, when=applicable_demand, because=demand_claims)),
    severity=Severity.ERROR,
)
@only_if(applicable_demand, "GPUDirect RDMA", "the job uses no RDMA, or only one machine")
def gpudirect_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA cards can read and write GPU memory, on all nodes or on none.

    What it checks: on nodes with an NVIDIA driver and active RDMA ports, a peer-memory module is loaded
    (nvidia_peermem, nv_peer_mem), or dma-buf replaces it: open kernel modules of driver 515 or later on Linux 5.12 or
    later.

    Why it matters: without this, every byte goes through host memory: about 10 instead of 180 GB/s in one report. If
    one node lacks it, all nodes wait for that node.

    Example: node2 was re-imaged, but `modprobe nvidia_peermem` was not run again.

    Fix: `modprobe nvidia_peermem`, and a line in /etc/modules-load.d; or the open kernel modules.

    Known limits: whether the card's driver accepts dma-bufs, and whether NCCL uses them between this GPU and this
    card (NCCL_NET_GDR_LEVEL), is not tested. AMD's driver has its own method and is not judged.
    """
    yield from missing_facts(facts, gpudirect, "GPUDirect RDMA")
    ports = ports_by_node(job, facts)
    states = {
        node: fact
        for node, fact in facts.observed(gpudirect).items()
        if fact.driver and any(item.port.active for item in ports.get(node, ()))
    }
    if facts.observed(gpudirect) and not states:
        yield not_applicable("GPUDirect RDMA", "no node has both an NVIDIA driver and an active RDMA port")
        return
    missing = {node: fact for node, fact in states.items() if not fact.peer_memory and not _has_dmabuf(fact)}
    if not missing:
        if states:
            yield passed(f"GPUDirect RDMA on {len(states)} nodes")
        return
    some = len(missing) < len(states)
    node, fact = next(iter(missing.items()))
    yield failed(
        "GPUDirect RDMA",
        f"no peer-memory module is loaded on {fold(missing)}, and driver {fact.driver} "
        f"({'open' if fact.open_modules else 'closed'} modules) on Linux {fact.kernel} does not support dma-buf "
        "instead" + (f"; {len(states) - len(missing)} nodes have one of them" if some else ""),
        at=Evidence("GPUDirect RDMA", "no module", "nvidia_peermem or dma-buf", "lsmod | grep peermem", node),
        also=backends(job)[1],
        nodes=tuple(missing),
        remedy=f"`modprobe nvidia_peermem` on {fold(missing)}, and make it permanent: `echo nvidia_peermem > "
        "/etc/modules-load.d/nvidia_peermem.conf`.",
        run=(root_command("modprobe", "nvidia_peermem", on=missing),),
        certain=some,
    )


def _has_dmabuf(fact: GpuDirect) -> bool:
    new_driver = version_of(fact.driver).major >= DMABUF_DRIVER
    return fact.open_modules and new_driver and minor_of(fact.kernel) >= DMABUF_KERNEL


_plan_pci = on_every_node(pci, when=lambda job, fleet: "nccl" in backends(job)[0], because=backend_claims)


@warning_check("PCI001", "acs-redirects-peer-traffic", plan=_plan_pci)
def acs_redirects(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, no PCI bridge above GPUs or RDMA cards redirects traffic between them to the processor.

    What it checks: the request and completion redirect bits of ACS on every bridge above a GPU or an RDMA card.

    Why it matters: traffic between GPUs, or between GPU and card, then leaves its switch: it is slower by half, and on
    some machines it hangs or corrupts data.

    Example: a firmware update re-enabled ACS; `lspci -vvv` shows `ACSCtl: ... ReqRedir+ CmpltRedir+`.

    Fix: disable ACS in the firmware, or `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at every boot.

    Known limits: virtual machines have virtual bridges and need ACS, so they are not judged. Without root, the bits
    cannot be read.
    """
    yield from _pci_undecidable_verdicts(job, facts, "ACS")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _has_peers(fact)}
    virtual_nodes = [node for node, fact in seen.items() if fact.virtual]
    if virtual_nodes:
        yield not_applicable(
            f"ACS on {fold(virtual_nodes)}", "a virtual machine, whose bridges are not the physical ones"
        )
    real = {node: fact for node, fact in seen.items() if not fact.virtual}
    hidden = [node for node, fact in real.items() if fact.unreadable and not fact.redirecting]
    if hidden:
        yield unknown(f"ACS on {fold(hidden)}", "only root may read the extended configuration space of PCI bridges")
    bad = {node: fact for node, fact in real.items() if fact.redirecting}
    if bad:
        node, fact = next(iter(bad.items()))
        yield failed(
            "ACS",
            f"{len(fact.redirecting)} of {len(fact.bridges)} PCI bridges above GPUs and network cards redirect peer "
            f"traffic on {fold(bad)} ({fold(fact.redirecting, 3)} on {node})",
            at=Evidence("ACS", fold(fact.redirecting, 3), "ReqRedir- CmpltRedir-", "lspci -vvv | grep ACSCtl", node),
            also=backends(job)[1],
            nodes=tuple(bad),
            remedy=f"Disable ACS in the firmware, or on {fold(bad)}: `setpci -s {fact.redirecting[0]} "
            "ECAP_ACS+0x6.w=0000` for each bridge, after every boot.",
        )
    elif real and not hidden:
        yield passed(f"ACS on {len(real)} nodes")


@warning_check("PCI002", "iommu-translates-device-traffic", plan=_plan_pci)
def iommu_translates(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, the IOMMU passes the traffic of GPUs and RDMA cards through.

    What it checks: the type of the IOMMU domains of GPUs and RDMA cards: `identity` (pass-through) or none.

    Why it matters: with translation, traffic between devices goes through the root complex and its tables, which is
    slower, and on some platforms peer access hangs.

    Example: a kernel with `amd_iommu=on` and without `iommu=pt`.

    Fix: add `iommu=pt` to the kernel's options, or disable the IOMMU in the firmware.

    Known limits: virtual machines need it and are not judged; the hypervisor's settings are not visible.
    """
    yield from _pci_undecidable_verdicts(job, facts, "IOMMU")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _has_peers(fact)}
    real = {node: fact for node, fact in seen.items() if not fact.virtual}
    if seen and not real:
        yield not_applicable("IOMMU", "virtual machines")
    bad = {node: fact for node, fact in real.items() if any(kind.startswith("DMA") for kind in fact.iommu)}
    if bad:
        node, fact = next(iter(bad.items()))
        options = " ".join(fact.kernel_options) or "no kernel option concerns it"
        yield failed(
            "IOMMU",
            f"the IOMMU translates the traffic of GPUs and network cards on {fold(bad)} "
            f"({fold(fact.iommu)}; {options})",
            at=Evidence("IOMMU", fold(fact.iommu), "identity", "cat /sys/kernel/iommu_groups/*/type", node),
            also=backends(job)[1],
            nodes=tuple(bad),
            remedy=f"Boot {fold(bad)} with `iommu=pt`, or disable the IOMMU in the firmware.",
        )
    elif real:
        yield passed(f"IOMMU on {len(real)} nodes")


def _has_peers(fact: Pci) -> bool:
    """Return whether there are two devices that could communicate directly."""
    return bool(fact.gpus) and len(fact.gpus) + len(fact.cards) > 1


def _pci_undecidable_verdicts(job: Job, facts: Facts, subject: str) -> Iterator[Verdict]:
    if "nccl" not in backends(job)[0]:
        yield not_applicable(subject, "the job does not use GPUs through NCCL")
        return
    yield from missing_facts(facts, pci, subject)
    if facts.observed(pci) and not any(_has_peers(fact) for fact in facts.observed(pci).values()):
        yield not_applicable(subject, "no node has two GPUs, or a GPU and an RDMA card")


_plan_memory_nodes = on_every_node(pci, when=lambda job, fleet: "nccl" in backends(job)[0], because=backend_claims)


@warning_check("RDM010", "hca-filter-crosses-sockets", plan=combine_plans(_plan_memory_nodes, plan_rdma))
@only_if(applicable_demand, "RDMA card distance", "the job uses no RDMA, or only one machine")
def hca_far(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The job's filter of RDMA devices selects a card on each GPU's own socket, if the node has one.

    What it checks: the memory node (NUMA) of each GPU and of each active RDMA device, with and without the job's filter
    (NCCL_IB_HCA, UCX_NET_DEVICES).

    Why it matters: data of a GPU without a near card crosses the link between processors, which all such GPUs share:
    half of the node's network speed is lost without an error.

    Example: NCCL_IB_HCA=mlx5_0,mlx5_1 names the two cards of memory node 0; GPUs 4 to 7 are on node 1, like mlx5_2 and
    mlx5_3, which are active.

    Fix: name the cards of both sockets, or a common prefix.

    Known limits: virtual machines often report no memory nodes; then the result is unknown. Cards behind other switches
    on the same socket count as near. A node without a card on that socket is not judged: the job cannot change it.
    """
    yield from missing_facts(facts, rdma, "RDMA card distance")
    bad: dict[str, tuple[int, list[str], list[str]]] = {}
    judged = 0
    for node, fact in facts.observed(pci).items():
        cards = hca_filter(job, node)
        devices = facts.observed(rdma).get(node)
        if cards is None or devices is None or not fact.gpus:
            continue
        near = {fact.numa.get(gpu, -1) for gpu in fact.gpus}
        if -1 in near:
            yield unknown(f"RDMA card distance on {node}", "the firmware names no memory node for its GPUs")
            continue
        judged += 1
        chosen = _devices_by_memory_node(chosen_ports(job, node, devices.devices), fact)
        devices_by_memory_node = _devices_by_memory_node([Port(d, p) for d in devices.devices for p in d.ports], fact)
        for place in sorted(near):
            if chosen and place not in chosen and devices_by_memory_node.get(place):
                far = [gpu for gpu in fact.gpus if fact.numa.get(gpu) == place]
                bad[node] = (place, far, devices_by_memory_node[place])
    for node, (place, far, idle) in bad.items():
        cards = hca_filter(job, node)
        assert cards is not None
        yield failed(
            f"RDMA card distance on {node}",
            f"with {cards.spelled}, {len(far)} GPUs of {node} on memory node {place} ({fold(far, 4)}) have no RDMA "
            f"card there, although {fold(idle)} {'is' if len(idle) == 1 else 'are'} active there",
            at=Evidence(
                "memory nodes",
                f"no card of {cards.spelled} on memory node {place}",
                fold(idle),
                "nvidia-smi topo -m",
                node,
            ),
            also=cards.claims,
            remedy=f"Add {fold(idle)} to {cards.variable}, or name a prefix that covers the cards of both sockets.",
        )
    if judged and not bad:
        yield passed(f"RDMA card distance on {judged} {'node' if judged == 1 else 'nodes'}")
    elif not judged and facts.observed(rdma):
        yield not_applicable("RDMA card distance", "the job filters no devices, or no node has visible GPUs")


def _devices_by_memory_node(ports: Sequence[Port], fact: Pci) -> Mapping[int, list[str]]:
    """Return the names of the usable devices, by the number of their memory node."""
    found: dict[int, list[str]] = {}
    for port in ports:
        place = fact.numa.get(port.device.pci, -1)
        if port.is_usable and place >= 0 and port.device.name not in found.setdefault(place, []):
            found[place].append(port.device.name)
    return found


EMPTY = "an empty entry"


@dataclass(frozen=True, slots=True)
class ChosenGid:
    """The GID that a port will use; `kind` is a description that can be compared between nodes."""

    port: Port
    index: int
    gid: Gid | None

    @property
    def kind(self) -> str:
        """A description such as `a RoCE v2 IPv4 address`, `a RoCE v1 link-local address` or `an empty entry`."""
        if self.gid is None:
            return EMPTY
        version = f"RoCE v{self.gid.version}" if self.gid.version else "RoCE"
        return f"a {version} {family(self.gid)} address"

    @property
    def is_usable(self) -> bool:
        """Return whether nodes on other networks can reach the GID, because it is a routable RoCE v2 address."""
        return self.gid is not None and self.gid.version != 1 and family(self.gid) != "link-local"

    @property
    def usable_alternative(self) -> Gid | None:
        """A usable entry of the port's table; None if the table has none."""
        return next((gid for gid in self.port.port.gids if gid.version == 2 and family(gid) != "link-local"), None)

    @property
    def description(self) -> str:
        """The index and content of the entry, for messages."""
        return f"index {self.index}: {address(self.gid) if self.gid else 'empty'}"


def family(gid: Gid) -> str:
    """Return `IPv4` (mapped), `link-local` or `IPv6`, as NCCL distinguishes them (net_ib/connect.cc)."""
    try:
        found = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return "unreadable"
    if found.ipv4_mapped is not None:
        return "link-local" if found.ipv4_mapped.is_link_local else "IPv4"
    return "link-local" if found.is_link_local else "IPv6"


def address(gid: Gid) -> str:
    """Return the address in a GID, in its usual notation."""
    try:
        found = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return gid.gid
    return str(found.ipv4_mapped or found)


def automatic_gid(gids: Sequence[Gid], wanted_family: str = "IPv4", version: int = 2) -> Gid | None:
    """Return the GID that NCCL 2.21 and later choose: of this family, preferably with this version
    (ncclIbGetGidIndex).
    """
    valid = [gid for gid in gids if family(gid) == wanted_family]
    for gid in valid:
        if gid.version == version:
            return gid
    return valid[0] if valid else next((gid for gid in gids if gid.index == 0), None)


def _setting(job: Job, node: str = "") -> tuple[str, int | None, tuple[Claim, ...]]:
    """Return the variable that selects the index, the index (None if NCCL chooses it), and the claims."""
    names, _claims = backends(job)
    variable = "NCCL_IB_GID_INDEX" if "nccl" in names else "UCX_IB_GID_INDEX"
    found = variable_value(job, variable, node)
    value = found.value if found is not None else ""
    index = int(value) if is_whole_number(value) else None
    return variable, index, found.claims if found is not None else ()


@memoize
def chosen_gids(job: Job, facts: Facts) -> dict[str, list[ChosenGid]]:
    """Return the GID of every active RoCE port in use, by node."""
    gids_by_node: dict[str, list[ChosenGid]] = {}
    six = variable_value(job, "NCCL_IB_ADDR_FAMILY")
    family = "IPv6" if six is not None and six.value == "AF_INET6" else "IPv4"
    number = variable_value(job, "NCCL_IB_ROCE_VERSION_NUM")
    version = int(number.value) if number is not None and is_whole_number(number.value) else 2
    for node, ports in ports_by_node(job, facts).items():
        _variable, index, _claims = _setting(job, node)
        for item in ports:
            if not item.port.active or item.port.link_layer != "Ethernet":
                continue
            if index is None:
                gid = automatic_gid(item.port.gids, family, version)
                gids_by_node.setdefault(node, []).append(ChosenGid(item, gid.index if gid is not None else 0, gid))
            else:
                at = [gid for gid in item.port.gids if gid.index == index]
                gids_by_node.setdefault(node, []).append(ChosenGid(item, index, at[0] if at else None))
    return gids_by_node


@rdma_check("RDM006", "roce-gid-unusable", severity=Severity.ERROR)
def gid_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The GID that each RoCE port uses is a routable RoCE v2 address, and of the same kind on all nodes.

    What it checks: the entry that NCCL_IB_GID_INDEX names in the table of every RoCE port in use (UCX_IB_GID_INDEX for
    UCX), or the entry that NCCL 2.21 and later choose; it must not be empty, link-local or RoCE v1, and must be of the
    same kind on all nodes.

    Why it matters: connections are set up over TCP but then time out ("error 12", "ibv_modify_qp failed with error
    Connection timed out"), on all nodes.

    Example: NCCL_IB_GID_INDEX=3 is ::ffff:10.0.0.4 RoCE v2 on three nodes, and empty on node2, whose interface has no
    IPv4 address.

    Fix: assign the card's interface its address; remove NCCL_IB_GID_INDEX (NCCL 2.21 and later), or name the index that
    `show_gids` prints for the RoCE v2 IPv4 address.

    Known limits: whether the address can be reached is not tested. Some switches forward link-local or version 1 within
    one segment: if the table has nothing better and all nodes agree, the finding is a warning.
    """
    yield from undecidable_verdicts(job, fleet, facts, "GIDs")
    gids_by_node = chosen_gids(job, facts) if applicable_demand(job, fleet) is not None else {}
    if not gids_by_node:
        if any(port.port.active for ports in ports_by_node(job, facts).values() for port in ports):
            yield not_applicable("GIDs", "no port in use is RoCE")
        elif any(ports_by_node(job, facts).values()) and applicable_demand(job, fleet) is not None:
            yield unknown("GIDs", "no port in use is active")
        return
    variable, index, claims = _setting(job)
    selection = f"{variable}={index}" if index is not None else "the GID that NCCL chooses"
    faults: dict[tuple[str, bool, bool], dict[str, ChosenGid]] = {}
    for name in dict.fromkeys(item.port.name for items in gids_by_node.values() for item in items):
        on = {node: item for node, items in gids_by_node.items() for item in items if item.port.name == name}
        parts = split({node: item.kind for node, item in on.items()})
        assert parts is not None
        mixed = bool(parts.odd)
        bad = {node: item for node, item in on.items() if not item.is_usable}
        for node, item in (bad or {node: on[node] for node in parts.odd}).items():
            # A port that is equal on all nodes may belong to storage, unless the job names its GID.
            certain = mixed or (index is not None and (item.usable_alternative is not None or item.kind == EMPTY))
            faults.setdefault((item.kind, mixed, certain), {})[f"{name} on {node}"] = item
    for (kind, mixed, certain), same_nodes in faults.items():
        yield _finding(selection, kind, same_nodes, claims, mixed=mixed, certain=certain)
    if not faults:
        yield passed(f"GIDs of {sum(map(len, gids_by_node.values()))} ports")


def _finding(
    selection: str,
    kind: str,
    same_nodes: dict[str, ChosenGid],
    claims: tuple[Claim, ...],
    *,
    mixed: bool,
    certain: bool,
) -> Verdict:
    where, some = next(iter(same_nodes.items()))
    nodes = list(dict.fromkeys(name.split(" on ")[1] for name in same_nodes))
    better = some.usable_alternative
    rest = ", but different on the other nodes" if mixed else ""
    hint = f"; index {better.index} is {address(better)}, RoCE v2" if better is not None else ""
    return failed(
        f"GIDs: {kind}",
        f"{selection} is {kind} on {fold(same_nodes)}{rest} ({where}: {some.description}{hint})",
        at=Evidence("GID", some.description, "a routable RoCE v2 address", "show_gids", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"Set NCCL_IB_GID_INDEX={better.index}, if it is the same on all nodes, or unset the variable (NCCL "
        "2.21 and newer choose by themselves)."
        if better is not None
        else f"Give the interface of {some.port.device.name} an IPv4 address on {fold(nodes)}"
        + (f" (`ip addr add ... dev {_interface(some)}`)." if _interface(some) else "."),
        certain=certain,
    )


def _interface(chosen: ChosenGid) -> str:
    return next((gid.interface for gid in chosen.port.port.gids if gid.interface), "")


#: Errors that a port may count in its life; far more than on the other nodes means a bad cable.
MIN_ERRORS = {"link_downed": 5, "symbol_error": 1000, "local_link_integrity_errors": 1000, "link_error_recovery": 10}


@rdma_check("RDM003", "rdma-rate-differs", severity=Severity.WARNING)
def rate_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A port has the same rate and link layer on all nodes.

    What it checks: rate and link layer of every active port that the job uses, port by port between nodes.

    Why it matters: with a dead lane in a cable, the link negotiates a quarter of the rate, and all wait for it;
    InfiniBand and Ethernet cannot communicate with each other.

    Example: mlx5_0 of node4 runs at 50 Gb/sec (1X HDR), elsewhere at 200 Gb/sec (4X HDR).

    Fix: reseat or replace the cable; set the port type of the card as on the other nodes.

    Known limits: without a clear majority, nothing is reported: mixed hardware may be intended.
    """
    yield from undecidable_verdicts(job, fleet, facts, "RDMA rates")
    ports = ports_by_node(job, facts) if applicable_demand(job, fleet) is not None else {}
    rates: dict[str, dict[str, Port]] = {}
    for node, found in ports.items():
        for item in found:
            if item.port.active:
                rates.setdefault(item.name, {})[node] = item
    slow: dict[tuple[str, str, str], list[str]] = {}
    layers: dict[tuple[str, str, str], list[str]] = {}
    compared = 0
    for name, on in rates.items():
        speed = split({node: item.port.rate_gbps for node, item in on.items() if item.port.rate_gbps is not None})
        compared += len(speed.agreeing) if speed is not None else 0
        for node, value in speed.odd.items() if speed is not None and speed.has_majority else ():
            if speed is not None and value is not None and speed.common is not None and value < speed.common:
                common = on[speed.agreeing[0]].port.rate_text
                slow.setdefault((on[node].port.rate_text, common, node), []).append(name)
        layer = split({node: item.port.link_layer for node, item in on.items() if item.port.link_layer})
        for node, kind in layer.odd.items() if layer is not None and layer.has_majority else ():
            assert layer is not None
            layers.setdefault((kind, layer.common, node), []).append(name)
    for (text, common, node), names in slow.items():
        yield failed(
            f"RDMA rate of {node}: {fold(names)}",
            f"{fold(names)} {'runs' if len(names) == 1 else 'run'} at {text} on {node}, but at {common} on most nodes",
            at=Evidence("rate", text, common, f"ibstat {_device(names)}", node),
            remedy=f"Reseat or replace the cable of {fold(names)} on {node}; `mlxlink -d {_device(names)}` shows its "
            "lanes.",
            confidence=Confidence.MEDIUM,
        )
    for (kind, common, node), names in layers.items():
        yield failed(
            f"link layer of {node}: {fold(names)}",
            f"{fold(names)} {'is' if len(names) == 1 else 'are'} {kind} on {node} but {common} on most nodes, and "
            "the two cannot communicate",
            at=Evidence("link layer", kind, common, f"ibstat {_device(names)}", node),
            remedy=f"Set the port type as on the other nodes: `mlxconfig -d {_device(names)} set LINK_TYPE_P1=...`.",
        )
    if compared and not slow and not layers:
        yield passed(f"RDMA rates of {len(ports)} nodes")


def _device(ports: list[str]) -> str:
    return ports[0].split(":")[0]


@rdma_check("RDM004", "rdma-link-errors", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def link_errors(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No port in use has far more link losses or corrected errors than the ports of the other nodes.

    What it checks: link_downed, symbol_error, local_link_integrity_errors and link_error_recovery of each active port
    in use compared with the median of all of them.

    Why it matters: a flapping link ends a run of several days with "error 12" or "transport retry counter exceeded".

    Example: mlx5_5 of node7 has lost its link 212 times; the median is 1.

    Fix: reseat or replace the cable and transceiver.

    Known limits: counters have no date and restart with the driver; fewer than three ports are not compared. Priority
    flow control and congestion notification are not examined, because each driver keeps these counters elsewhere.
    """
    yield from undecidable_verdicts(job, fleet, facts, "RDMA link errors")
    ports = ports_by_node(job, facts) if applicable_demand(job, fleet) is not None else {}
    active = [(node, item) for node, found in ports.items() for item in found if item.port.active]
    sick: list[tuple[str, Port, str, int, float]] = []
    for counter, few in MIN_ERRORS.items():
        values = [item.port.counters[counter] for _node, item in active if counter in item.port.counters]
        if len(values) < 3:
            continue
        usual = median(values)
        for node, item in active:
            count = item.port.counters.get(counter, 0)
            if count > few and count > 10 * usual:
                sick.append((node, item, counter, count, usual))
    for node, item, counter, count, usual in sick:
        yield failed(
            f"RDMA {counter} of {item.name} on {node}",
            f"{item.name} on {node} has {count} {counter}; the median of {len(active)} ports is {usual:g}",
            at=Evidence(counter, str(count), f"{usual:g}", f"perfquery; cat {_counter(item, counter)}", node),
            remedy=f"Reseat or replace the cable and transceiver of {item.name} on {node}.",
        )
    if active and not sick:
        yield passed(f"RDMA link errors of {len(active)} ports")


def _counter(item: Port, counter: str) -> str:
    return f"/sys/class/infiniband/{item.device.name}/ports/{item.port.number}/counters/{counter}"


@rdma_check("RDM005", "rdma-firmware-differs", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def firmware_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The RDMA cards of one model that the job uses have the same firmware version.

    What it checks: the firmware of the devices that the job's filter selects, compared between cards with the same
    board id.

    Why it matters: versions differ in congestion control, adaptive routing and known bugs; a node with an old version
    is slow or fails under load.

    Example: 28.33.0751 on node9, 28.39.1002 on 31 nodes.

    Fix: flash the card of the reported node, and reset it.

    Known limits: without a clear majority, nothing is reported.
    """
    yield from undecidable_verdicts(job, fleet, facts, "RDMA firmware")
    ports = ports_by_node(job, facts) if applicable_demand(job, fleet) is not None else {}
    versions: dict[str, dict[str, str]] = {}
    for node, found in ports.items():
        for item in found:
            if item.device.firmware:
                versions.setdefault(item.device.board, {})[f"{item.device.name} on {node}"] = item.device.firmware
    odd = False
    for board, on in versions.items():
        parts = split(on)
        if parts is None or not parts.odd or not parts.has_majority:
            continue
        odd = True
        _where, version = parts.first_odd
        nodes = list(dict.fromkeys(name.split(" on ")[1] for name in parts.odd))
        yield failed(
            f"RDMA firmware of {board or 'the cards'}",
            f"cards of the same model ({board or 'board unknown'}) have different firmware: {fold(parts.odd)} "
            f"{version}; {len(parts.agreeing)} have {parts.common}",
            at=Evidence("firmware", version, parts.common, "ibstat | grep -E 'CA|Firmware'", nodes[0]),
            nodes=nodes,
            remedy=f"Update {fold(parts.odd)} to {parts.common} (`mlxfwmanager`), and reset the cards.",
        )
    if versions and not odd:
        yield passed(f"RDMA firmware of {len(ports)} nodes")
