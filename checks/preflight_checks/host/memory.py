"""Checks that each node has enough memory for the job, and no less than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_high

from preflight.analysis.model_size import model_parameters, uses_less_memory
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import GIB, size
from preflight_checks.host.machines import plan_machines
from preflight_checks.plans import combined, has_launches, known_facts, on_every_node
from preflight_checks.probes.limits import limits
from preflight_checks.probes.machine import NumaNode, machine
from preflight_checks.requirements import fold, known_text, nodes_share_machine, scopes

#: A node with less than this fraction of the usual memory has a failed module; the memory that the kernel reserves for
#: itself is a smaller difference.
MIN_SHARE = 0.95
#: Less free memory than this counts as none: importing torch alone takes half of it.
MIN_FREE_BYTES = GIB
#: Bytes of a parameter with the optimizer in host memory: 32-bit master weight, momentum, variance and gradient
#: (Ren et al., ZeRO-Offload, arXiv 2101.06840); and of the weights if they are offloaded, too.
OFFLOADED_STATES, OFFLOADED_WEIGHT = 16, 2


_plan = combined(plan_machines, on_every_node(limits, when=has_launches, context=True))


@dataclass(frozen=True, slots=True)
class _Need:
    """The bytes that each node needs, the purpose, and the claims that state it."""

    amount: float
    purpose: str
    claims: tuple[Claim, ...]


def _needs(job: Job, nodes: int) -> Iterator[_Need]:
    """The least memory that the job needs on each node, and the memory that it requests from its scheduler."""
    for launch, scope in ((launch, launch.scope) for launch in job.launches):
        named = model_parameters(job, scope)
        if named is None or uses_less_memory(launch) or known_text(job, "offload_optimizer_device", scope) != "cpu":
            continue
        weights = known_text(job, "offload_param_device", scope) == "cpu"
        each = OFFLOADED_STATES + (OFFLOADED_WEIGHT if weights else 0)
        amount = named[0] * each // max(1, nodes)
        claims = (*job.setting("offload_optimizer_device", scope), named[1])
        yield _Need(amount, f"the optimizer in host memory takes {size(amount)}", claims)
    for scope in scopes(job):
        for claim in job.setting("memory_per_node_mib", scope):
            found = [value for value in claim.alternatives if isinstance(value, int) and value > 0]
            if found:
                # A scheduler counts the kernel's share as well.
                yield _Need(min(found) * 2**20 * MIN_SHARE, f"the job requests {size(min(found) * 2**20)}", (claim,))


@check(
    "MEM011",
    "host-memory-short",
    plan=_plan,
    cost="reads /proc/meminfo, and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "deepspeedai/DeepSpeed#4239",
        "deepspeedai/DeepSpeedExamples#498",
        ("Ren et al., arXiv 2101.06840", "https://arxiv.org/abs/2101.06840"),
    ),
)
def host_memory_short(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each node has the memory that the job needs, and some of it is free.

    What it checks: the memory of the machine, or the tightest limit of the control groups around a rank where that is
    less, compared with what an optimizer offloaded to the CPU takes (16 bytes of each parameter, shared by the nodes),
    what the job asks its scheduler for, and one GiB that must be free before anything starts.

    Why it matters: the kernel silently kills a rank (exit code -9), and the others wait for it.

    Example: a model of 13 billion parameters offloaded on two nodes with 64 GiB.

    Fix: use nodes with more memory, more nodes or a higher limit, or end other processes that use the memory.

    Known limits: this is a lower bound; page cache counts as free. Only models with their size in the name are known.
    """
    observed = yield from known_facts(facts, machine, "memory")
    held = facts.observed(limits)
    needs = list(_needs(job, len(fleet.nodes)))
    blind = [node for node, value in observed.items() if value.memory.total_bytes is None]
    if blind:
        yield unknown(f"memory of {fold(blind)}", "the kernel does not report its size")
    short: dict[str, dict[str, str]] = {}
    claims: dict[str, tuple[Claim, ...]] = {}
    for node, value in observed.items():
        total, free = value.memory.total_bytes, value.memory.available_bytes
        group = held[node].cgroup if node in held else None
        whose = "the machine"
        if group is not None and group.memory_limit_bytes is not None and group.memory_limit_bytes < (total or 0):
            total, whose = group.memory_limit_bytes, group.memory_limit_at
            free = min(free or total, total - (group.memory_used_bytes or 0))
        if total is None:
            continue
        for need in needs:
            if total < need.amount:
                short.setdefault(need.purpose, {})[node] = f"{whose} has {size(total)}"
                claims[need.purpose] = need.claims
        if free is not None and free < MIN_FREE_BYTES:
            short.setdefault("almost none is free", {})[node] = f"{whose} has {size(free)} of {size(total)} left"
    for reason, nodes in short.items():
        node, words = next(iter(nodes.items()))
        yield failed(
            f"memory: {reason}",
            f"memory is short on {fold(nodes)}: {reason} ({node}: {words})",
            at=Evidence("memory", words, reason, "free -h", node),
            also=claims.get(reason, ()),
            nodes=tuple(nodes),
            remedy=f"Use nodes with more memory than {fold(nodes)}, raise the limit, or end other processes that use "
            "memory there.",
        )
    if len(observed) > len(blind) and not short:
        yield passed(f"memory of {len(observed) - len(blind)} nodes")


@check(
    "MEM012",
    "host-memory-differs",
    plan=plan_machines,
    cost="reads /proc/meminfo and the memory nodes in /sys; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        (
            "server stopped recognising three memory modules; monitoring green, found by coincidence",
            "dangmocrang/check_idrac#61",
        ),
        ("the DIMM check of facebookresearch/gcm", "https://github.com/facebookresearch/gcm"),
        ("the kernel's guide to NUMA memory performance", "https://docs.kernel.org/admin-guide/mm/numaperf.html"),
    ),
)
def host_memory_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node has less memory than most, or less of it on one of its own memory nodes.

    What it checks: the memory of each machine compared with the upper median of all, and its memory nodes with each
    other if the other machines have even ones.

    Why it matters: a memory module that failed is disabled at the next boot. The node then has less bandwidth and
    runs out of memory first; ranks bound to the smaller memory node access the other for every page.

    Example: node6 has 960 GiB where the others have 1024.

    Fix: have the module replaced; `dmidecode -t memory`, `numactl --hardware`.

    Known limits: nodes of different kinds that are meant to work together are reported, too.
    """
    observed = yield from known_facts(facts, machine, "memory")
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("memory", "the job has one machine")
        return
    totals = {node: value.memory.total_bytes for node, value in observed.items() if value.memory.total_bytes}
    if len(totals) < 2:
        if observed:
            yield unknown("memory", "the memory of fewer than two nodes is known")
        return
    usual = median_high(totals.values())
    less = {node: total for node, total in totals.items() if total < MIN_SHARE * usual}
    if less:
        node = min(less, key=lambda name: less[name])
        sizes = fold(f"{name} has {size(total)}" for name, total in less.items())
        yield failed(
            "memory: less",
            f"less memory than on the other nodes, which have {size(usual)}: {sizes}",
            at=Evidence("memory", size(less[node]), size(usual), "free -h; dmidecode -t memory", node),
            nodes=tuple(less),
            remedy=f"Check whether a module failed on {fold(less)}: `dmidecode -t memory`, `dmesg | grep -i edac`.",
        )
    uneven = {node: words for node, value in observed.items() if (words := _smallest_node_text(value.numa))}
    if uneven and len(uneven) * 2 < len(observed):
        node, words = next(iter(uneven.items()))
        yield failed(
            "memory: uneven",
            f"memory is spread unevenly on {fold(uneven)}, and evenly on the other nodes: {words}",
            at=Evidence("memory nodes", words, "the same on each", "numactl --hardware", node),
            nodes=tuple(uneven),
            remedy=f"Check whether a memory module failed on {fold(uneven)}: `dmidecode -t memory`.",
        )
    if not less and not (uneven and len(uneven) * 2 < len(observed)):
        yield passed(f"memory of {len(totals)} nodes")


def _smallest_node_text(nodes: Sequence[NumaNode]) -> str:
    """The memory node with less than nine tenths of the largest, among those with any memory."""
    sizes = {node.number: node.memory_bytes for node in nodes if node.memory_bytes}
    poor = [number for number, amount in sizes.items() if amount < 0.9 * max(sizes.values())]
    return ", ".join(f"node {n} has {size(sizes[n])}, the largest has {size(max(sizes.values()))}" for n in poor)
