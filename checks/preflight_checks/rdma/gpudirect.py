"""Checks that network cards can access GPU memory directly, without bridges, the IOMMU or memory nodes in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.comparison import minor_of, version_of
from preflight_checks.plans import combined, missing_facts, on_every_node
from preflight_checks.probes.pci import Pci, pci
from preflight_checks.probes.rdma import rdma
from preflight_checks.probes.rdma_access import GpuDirect, gpudirect
from preflight_checks.rdma.devices import (
    Port,
    applies,
    chosen_ports,
    demand_claims,
    hca_filter,
    plan_rdma,
    ports_by_node,
)
from preflight_checks.requirements import backend_claims, backends, fold

#: NVIDIA's driver of this branch and a kernel of this version are the first that export GPU memory as a dma-buf.
DMABUF_DRIVER, DMABUF_KERNEL = 515, (5, 12)


@check(
    "RDM008",
    "gpudirect-rdma-missing",
    plan=combined(plan_rdma, on_every_node(gpudirect, when=applies, because=demand_claims)),
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1676", "NVIDIA/nccl#897", "NVIDIA/nccl#1537", "NVIDIA/nccl#1939", "NCCL, net_ib/gdr.cc"),
    cost="looks for three files of /sys and reads the driver's version; milliseconds",
)
def gpudirect_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA cards can read and write GPU memory, on all nodes or on none.

    What it checks: on nodes with an NVIDIA driver and active RDMA ports, that a peer-memory module is loaded
    (nvidia_peermem, nv_peer_mem), or that dma-buf replaces it: open kernel modules of driver 515 or later on Linux
    5.12 or later.

    Why it matters: without it every byte goes through host memory: about 10 instead of 180 GB/s in one report. If one
    node lacks it, all nodes wait for that node.

    Example: node2 was re-imaged, and `modprobe nvidia_peermem` was not run again.

    Fix: `modprobe nvidia_peermem`, and a line in /etc/modules-load.d; or the open kernel modules.

    Known limits: whether the card's driver accepts dma-bufs, and whether NCCL uses them between this GPU and this
    card (NCCL_NET_GDR_LEVEL), is not tested. AMD's driver has its own method and is not judged.
    """
    if applies(job, fleet) is None:
        yield not_applicable("GPUDirect RDMA", "the job uses no RDMA, or one machine")
        return
    yield from missing_facts(facts, gpudirect, "GPUDirect RDMA")
    ports = ports_by_node(job, facts)
    seen = {
        node: fact
        for node, fact in facts.observed(gpudirect).items()
        if fact.driver and any(item.port.active for item in ports.get(node, ()))
    }
    if facts.observed(gpudirect) and not seen:
        yield not_applicable("GPUDirect RDMA", "no node has both an NVIDIA driver and an active RDMA port")
        return
    missing = {node: fact for node, fact in seen.items() if not fact.peer_memory and not _has_dmabuf(fact)}
    if not missing:
        if seen:
            yield passed(f"GPUDirect RDMA on {len(seen)} nodes")
        return
    some = len(missing) < len(seen)
    node, fact = next(iter(missing.items()))
    yield failed(
        "GPUDirect RDMA",
        f"no peer-memory module is loaded on {fold(missing)}, and driver {fact.driver} "
        f"({'open' if fact.open_modules else 'closed'} modules) on Linux {fact.kernel} has no dma-buf as a replacement"
        + (f"; {len(seen) - len(missing)} nodes have one of them" if some else ""),
        at=Evidence("GPUDirect RDMA", "no module", "nvidia_peermem or dma-buf", "lsmod | grep peermem", node),
        also=backends(job)[1],
        nodes=tuple(missing),
        remedy=f"`modprobe nvidia_peermem` on {fold(missing)}, and keep it: "
        "`echo nvidia_peermem > /etc/modules-load.d/nvidia_peermem.conf`.",
        run=(root_command("modprobe", "nvidia_peermem", on=missing),),
        certain=some,
    )


def _has_dmabuf(fact: GpuDirect) -> bool:
    new_driver = version_of(fact.driver).major >= DMABUF_DRIVER
    return fact.open_modules and new_driver and minor_of(fact.kernel) >= DMABUF_KERNEL


_plan_pci = on_every_node(pci, when=lambda job, fleet: "nccl" in backends(job)[0], because=backend_claims)


@check(
    "PCI001",
    "acs-redirects-peer-traffic",
    plan=_plan_pci,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "NVIDIA/nccl#2079",
        "NVIDIA/nccl#606",
        "NVIDIA/nccl#304",
        "NVIDIA/nccl#257",
        "NCCL user guide, troubleshooting",
    ),
    cost="reads the configuration space of the bridges above GPUs and RDMA cards; milliseconds",
    without_root="the ACS bits: the extended configuration space of a bridge is readable only by root",
)
def acs_redirects(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, no PCI bridge above GPUs or RDMA cards sends traffic between them up to the processor.

    What it checks: the request and completion redirect bits of ACS on every bridge above a GPU or an RDMA card.

    Why it matters: traffic between GPUs, or between GPU and card, then leaves its switch: slower by half, and on some
    machines it hangs or corrupts data.

    Example: a firmware update re-enabled ACS; `lspci -vvv` shows `ACSCtl: ... ReqRedir+ CmpltRedir+`.

    Fix: switch ACS off in the firmware, or `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at every boot.

    Known limits: virtual machines have virtual bridges and need ACS, so they are not judged. Without root the bits
    cannot be read.
    """
    yield from _pci_blind(job, facts, "ACS")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _has_peers(fact)}
    virtual_nodes = [node for node, fact in seen.items() if fact.virtual]
    if virtual_nodes:
        yield not_applicable(f"ACS on {fold(virtual_nodes)}", "a virtual machine: its bridges are not the real ones")
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
            remedy=f"Disable ACS in the firmware, or on {fold(bad)}: "
            f"`setpci -s {fact.redirecting[0]} ECAP_ACS+0x6.w=0000` for each of them, after every boot.",
        )
    elif real and not hidden:
        yield passed(f"ACS on {len(real)} nodes")


@check(
    "PCI002",
    "iommu-translates-device-traffic",
    plan=_plan_pci,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#667", "NVIDIA/nccl#304", "NCCL user guide, troubleshooting"),
    cost="reads the IOMMU type of GPUs and RDMA cards from /sys; milliseconds",
)
def iommu_translates(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, the IOMMU passes the traffic of GPUs and RDMA cards through.

    What it checks: the type of the IOMMU domains of GPUs and RDMA cards: `identity` (pass-through) or none.

    Why it matters: with translation, traffic between devices goes through the root complex and its tables: slower, and
    on some platforms peer access hangs.

    Example: a kernel with `amd_iommu=on` and without `iommu=pt`.

    Fix: `iommu=pt` among the kernel's options, or the IOMMU off in the firmware.

    Known limits: virtual machines need it and are not judged; the hypervisor's settings are not visible.
    """
    yield from _pci_blind(job, facts, "IOMMU")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _has_peers(fact)}
    real = {node: fact for node, fact in seen.items() if not fact.virtual}
    if seen and not real:
        yield not_applicable("IOMMU", "virtual machines")
    bad = {node: fact for node, fact in real.items() if any(kind.startswith("DMA") for kind in fact.iommu)}
    if bad:
        node, fact = next(iter(bad.items()))
        options = " ".join(fact.kernel_options) or "no kernel option applies to it"
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
    """Whether there are two devices that could communicate directly."""
    return bool(fact.gpus) and len(fact.gpus) + len(fact.cards) > 1


def _pci_blind(job: Job, facts: Facts, subject: str) -> Iterator[Verdict]:
    if "nccl" not in backends(job)[0]:
        yield not_applicable(subject, "the job uses no GPUs through NCCL")
        return
    yield from missing_facts(facts, pci, subject)
    if facts.observed(pci) and not any(_has_peers(fact) for fact in facts.observed(pci).values()):
        yield not_applicable(subject, "no node has two GPUs, or a GPU and an RDMA card")


_plan_memory_nodes = on_every_node(pci, when=lambda job, fleet: "nccl" in backends(job)[0], because=backend_claims)


@check(
    "RDM010",
    "hca-filter-crosses-sockets",
    plan=combined(_plan_memory_nodes, plan_rdma),
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "NVIDIA/nccl#820",
        ("NCCL's documentation of NCCL_IB_HCA", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"),
    ),
    cost="reads the memory node of each GPU and card below /sys; milliseconds",
)
def hca_far(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The job's filter of RDMA devices leaves each GPU a card on its own socket, where the node has one.

    What it checks: the memory node (NUMA) of each GPU and of each active RDMA device, with and without the job's filter
    (NCCL_IB_HCA, UCX_NET_DEVICES).

    Why it matters: bytes of a GPU without a near card cross the link between processors, which all such GPUs share:
    half of the node's network speed, without an error.

    Example: NCCL_IB_HCA=mlx5_0,mlx5_1 names the two cards of memory node 0; GPUs 4 to 7 are on node 1, like mlx5_2 and
    mlx5_3, which are active.

    Fix: name the cards of both sockets, or a prefix of all.

    Known limits: virtual machines often name no memory node; then it is unknown. Cards behind other switches of the
    same socket count as near. A node without a card on that socket is not judged: the job cannot change it.
    """
    if applies(job, fleet) is None:
        yield not_applicable("distance of RDMA cards", "the job uses no RDMA, or one machine")
        return
    yield from missing_facts(facts, rdma, "distance of RDMA cards")
    bad: dict[str, tuple[int, list[str], list[str]]] = {}
    judged = 0
    for node, fact in facts.observed(pci).items():
        wanted = hca_filter(job, node)
        devices = facts.observed(rdma).get(node)
        if wanted is None or devices is None or not fact.gpus:
            continue
        near = {fact.numa.get(gpu, -1) for gpu in fact.gpus}
        if -1 in near:
            yield unknown(f"distance of RDMA cards on {node}", "the firmware names no memory node for its GPUs")
            continue
        judged += 1
        chosen = _on_memory_nodes(chosen_ports(job, node, devices.devices), fact)
        every = _on_memory_nodes([Port(d, p) for d in devices.devices for p in d.ports], fact)
        for place in sorted(near):
            if chosen and place not in chosen and every.get(place):
                far = [gpu for gpu in fact.gpus if fact.numa.get(gpu) == place]
                bad[node] = (place, far, every[place])
    for node, (place, far, idle) in bad.items():
        wanted = hca_filter(job, node)
        assert wanted is not None
        yield failed(
            f"distance of RDMA cards on {node}",
            f"{wanted.spelled} leaves {len(far)} GPUs of {node} on memory node {place} ({fold(far, 4)}) without an "
            f"RDMA card there, though {fold(idle)} {'is' if len(idle) == 1 else 'are'} active there",
            at=Evidence(
                "memory nodes",
                f"no card of {wanted.spelled} on memory node {place}",
                fold(idle),
                "nvidia-smi topo -m",
                node,
            ),
            also=wanted.claims,
            remedy=f"Add {fold(idle)} to {wanted.variable}, or name a prefix that covers the cards of both sockets.",
        )
    if judged and not bad:
        yield passed(f"distance of RDMA cards on {judged} {'node' if judged == 1 else 'nodes'}")
    elif not judged and facts.observed(rdma):
        yield not_applicable("distance of RDMA cards", "the job filters no devices, or no node shows GPUs")


def _on_memory_nodes(ports: Sequence[Port], fact: Pci) -> Mapping[int, list[str]]:
    """The usable devices by memory node."""
    found: dict[int, list[str]] = {}
    for port in ports:
        place = fact.numa.get(port.device.pci, -1)
        if port.usable and place >= 0 and port.device.name not in found.setdefault(place, []):
            found[place].append(port.device.name)
    return found
