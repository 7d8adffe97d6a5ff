"""The check of the distance between RDMA cards and GPUs, by their memory nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.planning import missing_facts, on_every_node
from preflight_checks.probes.pci import Pci, pci
from preflight_checks.probes.rdma import rdma
from preflight_checks.rdma.device_state import plan_rdma
from preflight_checks.rdma.port_choice import Port, applies, chosen_ports, hca_filter
from preflight_checks.requirements.backends import backend_claims, backends
from preflight_checks.requirements.hosts import fold

_plan_pci = on_every_node(pci, when=lambda job, fleet: "nccl" in backends(job)[0], because=backend_claims)


def _plan_distance(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from _plan_pci(job, fleet, facts)
    yield from plan_rdma(job, fleet, facts)


@check(
    "RDM010",
    "hca-filter-crosses-sockets",
    plan=_plan_distance,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "NVIDIA/nccl#820",
        ("NCCL's documentation of NCCL_IB_HCA", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"),
    ),
    probes=(pci, rdma),
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
            nodes=(node,),
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
