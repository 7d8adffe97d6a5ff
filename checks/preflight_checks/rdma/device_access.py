"""Checks that ranks can use the node's RDMA devices in their own context."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.planning import missing_facts
from preflight_checks.probes.rdma import rdma
from preflight_checks.probes.rdma_access import RdmaAccess, rdma_access
from preflight_checks.rdma.device_state import plan_rdma
from preflight_checks.rdma.port_choice import applies, ports_by_node
from preflight_checks.requirements.hosts import fold


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_rdma(job, fleet, facts)
    wanted = applies(job, fleet)
    for node in fleet.reached if wanted is not None else ():
        assert wanted is not None
        yield Request(probe_name(rdma_access), node.name, context=True, because=wanted.claims)


@check(
    "RDM007",
    "rdma-closed-to-ranks",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#2428", "aws-samples/aws-do-eks#63", "areal-project/AReaL#639"),
    probes=(rdma, rdma_access),
    cost="opens each device node of /dev/infiniband in the job context; milliseconds",
    without_root="nothing: the check uses the ranks' own user",
)
def rdma_closed_to_ranks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A rank can open the device nodes of the node's RDMA cards, and load libibverbs.

    What it checks: inside the job context, on nodes whose cards are active: /dev/infiniband/uverbs* exist, one per
    card, and can be opened; libibverbs.so.1 can be loaded.

    Why it matters: a container without the device nodes sees the cards in /sys and cannot use them: NCCL takes TCP,
    several times slower, or hangs where one node has them and another does not.

    Example: a pod without the RDMA resource, or `docker run` without `--device=/dev/infiniband`.

    Fix: pass the devices to the container, add the job's user to the group of the nodes, install libibverbs1.

    Known limits: creating a queue pair is not tested.
    """
    wanted = applies(job, fleet)
    if wanted is None:
        yield not_applicable("RDMA of the ranks", "the job uses no RDMA, or one machine")
        return
    yield from missing_facts(facts, rdma, "RDMA devices")
    yield from missing_facts(facts, rdma_access, "RDMA of the ranks")
    seen = facts.observed(rdma_access)
    usable = {
        node: len({p.device.name for p in found if p.port.active}) for node, found in ports_by_node(job, facts).items()
    }
    on = {node: seen[node] for node, count in usable.items() if count and node in seen}
    if not on:
        if facts.observed(rdma) and not any(usable.values()):
            yield not_applicable("RDMA of the ranks", "no node has an active RDMA device")
        return
    faults: dict[str, list[str]] = {}
    for node, access in on.items():
        fault = _fault(access, usable[node])
        if fault:
            faults.setdefault(fault, []).append(node)
    fine = len(on) - sum(len(nodes) for nodes in faults.values())
    for fault, nodes in faults.items():
        certain = bool(fine) or wanted.strict
        yield failed(
            f"RDMA of the ranks: {fault}",
            f"a rank on {fold(nodes)} {fault}"
            + (f"; on {fine} nodes it can use RDMA" if fine else "; traffic goes over TCP, several times slower"),
            at=Evidence("in the job context", fault, "RDMA can be used", _COMMAND, nodes[0]),
            also=wanted.claims,
            nodes=nodes,
            remedy="Install libibverbs1 (and the provider, ibverbs-providers) in the environment of the ranks."
            if "libibverbs" in fault
            else "Pass the devices to the container (`--device=/dev/infiniband`, or the cluster's RDMA resource), or "
            "give the job's user access to them.",
            severity=None if certain else Severity.WARNING,
            confidence=None if certain else Confidence.MEDIUM,
        )
    if fine and not faults:
        yield passed(f"RDMA of the ranks on {fine} nodes")


_COMMAND = "ls -l /dev/infiniband; ldconfig -p | grep ibverbs"


def _fault(access: RdmaAccess, cards: int) -> str:
    """What blocks a rank, as a predicate; empty if nothing does."""
    if not access.nodes:
        return "has no device node in /dev/infiniband, though the node has active cards"
    if len(access.refused) == len(access.nodes):
        return f"may not open any of {len(access.nodes)} device nodes ({next(iter(access.refused.values()))})"
    if len(access.nodes) - len(access.refused) < cards:
        return f"may open {len(access.nodes) - len(access.refused)} device nodes for {cards} cards in use"
    if access.missing_library:
        return "cannot load libibverbs.so.1"
    return ""
