"""Whether network cards reach GPU memory by themselves, and whether the PCI bridges between them let it through."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import backends, fold, unseen
from preflight_checks.probes.gpudirect import GpuDirect, gpudirect
from preflight_checks.probes.pci import Pci, pci
from preflight_checks.probes.rdma import rdma
from preflight_checks.rdma.rdma import plan_rdma
from preflight_checks.rdma.rdma_use import applies, ports_by_node

#: NVIDIA's driver of this branch and a kernel of this version are the first that hand out GPU memory as a dma-buf.
DMABUF_DRIVER, DMABUF_KERNEL = 515, (5, 12)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_rdma(job, fleet, facts)
    wanted = applies(job, fleet)
    for node in fleet.reached if wanted is not None else ():
        assert wanted is not None
        yield Request(probe_name(gpudirect), node.name, because=wanted.claims)


@check(
    "RDM008",
    "gpudirect-rdma-missing",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#1676", "NVIDIA/nccl#897", "NVIDIA/nccl#1537", "NVIDIA/nccl#1939"),
    probes=(gpudirect, rdma),
    cost="looks for three files of /sys and reads the driver's version; milliseconds",
)
def gpudirect_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """RDMA cards can read and write GPU memory, on all nodes or on none.

    What it checks: on nodes with an NVIDIA driver and active RDMA ports, that a peer-memory module is loaded
    (nvidia_peermem, nv_peer_mem), or that dma-buf can do without: open kernel modules of driver 515 or later on Linux
    5.12 or later.

    Why it matters: without it every byte goes through host memory: about 180 against 10 GB/s in one report. Where one
    node lacks it, all wait for that node.

    Example: node2 was re-imaged, and nobody ran `modprobe nvidia_peermem`.

    Fix: `modprobe nvidia_peermem`, and a line in /etc/modules-load.d; or the open kernel modules.

    Known limits: whether the card's own driver takes dma-bufs, and whether NCCL uses it between this GPU and this card
    (NCCL_NET_GDR_LEVEL), is not tried. AMD's driver has its own way and is not judged.

    Evidence: NVIDIA/nccl#1676, NVIDIA/nccl#897, NVIDIA/nccl#1537, NVIDIA/nccl#1939; NCCL, net_ib/gdr.cc.
    """
    if applies(job, fleet) is None:
        yield not_applicable("GPUDirect RDMA", "the job uses no RDMA, or one machine")
        return
    yield from unseen(facts, gpudirect, "GPUDirect RDMA")
    ports = ports_by_node(job, facts)
    seen = {
        node: fact
        for node, fact in facts.observed(gpudirect).items()
        if fact.driver and any(item.port.active for item in ports.get(node, ()))
    }
    if facts.observed(gpudirect) and not seen:
        yield not_applicable("GPUDirect RDMA", "no node has both an NVIDIA driver and an active RDMA port")
        return
    lacking = {node: fact for node, fact in seen.items() if not fact.peer_memory and not _has_dmabuf(fact)}
    if not lacking:
        if seen:
            yield passed(f"GPUDirect RDMA on {len(seen)} nodes")
        return
    some = len(lacking) < len(seen)
    node, fact = next(iter(lacking.items()))
    yield failed(
        "GPUDirect RDMA",
        f"no peer-memory module is loaded on {fold(lacking)}, and driver {fact.driver} "
        f"({'open' if fact.open_modules else 'closed'} modules) on Linux {fact.kernel} has no dma-buf to replace it"
        + (f"; {len(seen) - len(lacking)} nodes have one of them" if some else ""),
        at=Evidence("GPUDirect RDMA", "no module", "nvidia_peermem or dma-buf", "lsmod | grep peermem", node),
        also=backends(job)[1],
        nodes=tuple(lacking),
        remedy=f"`modprobe nvidia_peermem` on {fold(lacking)}, and keep it: "
        "`echo nvidia_peermem > /etc/modules-load.d/nvidia_peermem.conf`.",
        run=(root_command("modprobe", "nvidia_peermem", on=lacking),),
        severity=None if some else Severity.WARNING,
        confidence=None if some else Confidence.MEDIUM,
    )


def _has_dmabuf(fact: GpuDirect) -> bool:
    numbers = [int(part) for part in re.findall(r"\d+", fact.kernel)[:2]]
    branch = fact.driver.split(".")[0]
    return fact.open_modules and branch.isdigit() and int(branch) >= DMABUF_DRIVER and tuple(numbers) >= DMABUF_KERNEL


def _plan_pci(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    names, claims = backends(job)
    if "nccl" in names and fleet.nodes:
        for node in fleet.reached:
            yield Request(probe_name(pci), node.name, because=claims)


@check(
    "PCI001",
    "acs-redirects-peer-traffic",
    plan=_plan_pci,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#2079", "NVIDIA/nccl#606", "NVIDIA/nccl#304", "NVIDIA/nccl#257"),
    probes=(pci,),
    cost="reads the configuration space of the bridges above GPUs and RDMA cards; milliseconds",
    without_root="the ACS bits: the extended configuration space of a bridge is root's alone",
)
def acs_redirects(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, no PCI bridge above GPUs or RDMA cards sends traffic between them up to the processor.

    What it checks: the request and completion redirect bits of ACS on every bridge above a GPU or an RDMA card.

    Why it matters: traffic between GPUs, or between GPU and card, then leaves its switch: slower by half, and on some
    machines it hangs or corrupts data.

    Example: a firmware update switched ACS on again; `lspci -vvv` shows `ACSCtl: ... ReqRedir+ CmpltRedir+`.

    Fix: switch ACS off in the firmware, or `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at every boot.

    Known limits: virtual machines show bridges of their own and need ACS; there nothing is said. Without root the
    bits cannot be read.

    Evidence: NVIDIA/nccl#2079, NVIDIA/nccl#606, NVIDIA/nccl#304, NVIDIA/nccl#257; NCCL user guide, troubleshooting.
    """
    yield from _pci_blind(job, facts, "ACS")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _several(fact)}
    guests = [node for node, fact in seen.items() if fact.virtual]
    if guests:
        yield not_applicable(f"ACS on {fold(guests)}", "a virtual machine: its bridges are not the real ones")
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
            remedy=f"Switch ACS off in the firmware, or on {fold(bad)}: "
            f"`setpci -s {fact.redirecting[0]} ECAP_ACS+0x6.w=0000` for each of them, at every boot.",
        )
    elif real and not hidden:
        yield passed(f"ACS on {len(real)} nodes")


@check(
    "PCI002",
    "iommu-translates-device-traffic",
    plan=_plan_pci,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#667", "NVIDIA/nccl#304"),
    probes=(pci,),
    cost="reads the IOMMU type of GPUs and RDMA cards from /sys; milliseconds",
)
def iommu_translates(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On bare metal, the IOMMU passes the traffic of GPUs and RDMA cards through.

    What it checks: the type of the IOMMU domains of GPUs and RDMA cards: `identity` (pass-through) or none.

    Why it matters: with translation, traffic between devices goes through the root complex and its tables: slower, and
    on some platforms peer access hangs.

    Example: a kernel with `amd_iommu=on` and without `iommu=pt`.

    Fix: `iommu=pt` among the kernel's options, or the IOMMU off in the firmware.

    Known limits: virtual machines need it, and are left alone; what a hypervisor does below cannot be seen.

    Evidence: NVIDIA/nccl#667, NVIDIA/nccl#304; NCCL user guide, troubleshooting.
    """
    yield from _pci_blind(job, facts, "IOMMU")
    seen = {node: fact for node, fact in facts.observed(pci).items() if _several(fact)}
    real = {node: fact for node, fact in seen.items() if not fact.virtual}
    if seen and not real:
        yield not_applicable("IOMMU", "virtual machines")
    bad = {node: fact for node, fact in real.items() if any(kind.startswith("DMA") for kind in fact.iommu)}
    if bad:
        node, fact = next(iter(bad.items()))
        options = " ".join(fact.kernel_options) or "no option of the kernel concerns it"
        yield failed(
            "IOMMU",
            f"the IOMMU translates the traffic of GPUs and network cards on {fold(bad)} "
            f"({fold(fact.iommu)}; {options})",
            at=Evidence("IOMMU", fold(fact.iommu), "identity", "cat /sys/kernel/iommu_groups/*/type", node),
            also=backends(job)[1],
            nodes=tuple(bad),
            remedy=f"Boot {fold(bad)} with `iommu=pt`, or switch the IOMMU off in the firmware.",
        )
    elif real:
        yield passed(f"IOMMU on {len(real)} nodes")


def _several(fact: Pci) -> bool:
    """Whether there are two devices that could talk to each other."""
    return bool(fact.gpus) and len(fact.gpus) + len(fact.cards) > 1


def _pci_blind(job: Job, facts: Facts, what: str) -> Iterator[Verdict]:
    if "nccl" not in backends(job)[0]:
        yield not_applicable(what, "the job uses no GPUs through NCCL")
        return
    yield from unseen(facts, pci, what)
    if facts.observed(pci) and not any(_several(fact) for fact in facts.observed(pci).values()):
        yield not_applicable(what, "no node has two GPUs, or a GPU and an RDMA card")
