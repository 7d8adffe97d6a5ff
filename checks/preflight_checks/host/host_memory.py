"""Whether each node has memory enough for the job, and no less than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_high

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, known_text, scopes, stand_ins, unseen
from preflight_checks.host.machines import plan_machines
from preflight_checks.per_node import GIB, size
from preflight_checks.probes.limits import limits
from preflight_checks.probes.machine import NumaNode, machine
from preflight_rules.sizes.memory import lighter
from preflight_rules.sizes.transformer import model_parameters

#: Less than this part of what most nodes have is a module that failed, not the kernel's own share.
SHARE = 0.95
#: So little left, of the machine or of the ranks' own limit, is none: importing torch alone takes half of it.
NONE_LEFT = GIB
#: Bytes of a parameter with the optimizer in host memory: 32-bit master weight, momentum, variance and gradient
#: (Ren et al., ZeRO-Offload, arXiv 2101.06840); and of the weights when they lie there, too.
OFFLOADED_STATES, OFFLOADED_WEIGHT = 16, 2


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_machines(job, fleet, facts)
    for node in fleet.reached:
        if job.launches:
            yield Request(probe_name(limits), node.name, context=True)


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes that must be there on each node, what for, and who says so."""

    amount: float
    why: str
    claims: tuple[Claim, ...]


def _needs(job: Job, nodes: int) -> Iterator[_Need]:
    """What the job keeps in the memory of each node at least, and what it asks its scheduler for."""
    for launch, scope in ((launch, launch.scope) for launch in job.launches):
        named = model_parameters(job, scope)
        if named is None or lighter(launch) or known_text(job, "offload_optimizer_device", scope) != "cpu":
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
                yield _Need(min(found) * 2**20 * SHARE, f"the job asks for {size(min(found) * 2**20)}", (claim,))


@check(
    "MEM011",
    "host-memory-short",
    plan=_plan,
    probes=(machine, limits),
    cost="reads /proc/meminfo, and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#4239", "deepspeedai/DeepSpeedExamples#498", "https://arxiv.org/abs/2101.06840"),
)
def host_memory_short(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each node has the memory that the job keeps there, and some of it is free.

    What it checks: the memory of the machine, or the tightest limit of the control groups around a rank where that is
    less, against what an optimizer offloaded to the CPU takes (16 bytes of each parameter, shared by the nodes), what
    the job asks its scheduler for, and one GiB that must be free before anything starts.

    Why it matters: the kernel kills a rank without a word (exit code -9), and the others wait for it.

    Example: a model of 13 billion parameters offloaded on two nodes with 64 GiB.

    Fix: nodes with more memory, more nodes, a higher limit, or what else holds the memory ended.

    Known limits: a lower bound; page cache counts as free. Only a model that is named with its size is known.

    Evidence: deepspeedai/DeepSpeed#4239, deepspeedai/DeepSpeedExamples#498; Ren et al., arXiv 2101.06840.
    """
    have = facts.observed(machine)
    yield from unseen(facts, machine, "memory")
    held = facts.observed(limits)
    needs = list(_needs(job, len(fleet.nodes)))
    blind = [node for node, value in have.items() if value.memory.total_bytes is None]
    if blind:
        yield unknown(f"memory of {fold(blind)}", "the kernel does not say how much there is")
    short: dict[str, dict[str, str]] = {}
    claims: dict[str, tuple[Claim, ...]] = {}
    for node, value in have.items():
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
                short.setdefault(need.why, {})[node] = f"{whose} has {size(total)}"
                claims[need.why] = need.claims
        if free is not None and free < NONE_LEFT:
            short.setdefault("hardly any is left", {})[node] = f"{whose} has {size(free)} of {size(total)} left"
    for why, nodes in short.items():
        node, words = next(iter(nodes.items()))
        yield failed(
            f"memory: {why}",
            f"memory is short on {fold(nodes)}: {why} ({node}: {words})",
            at=Evidence("memory", words, why, "free -h", node),
            also=claims.get(why, ()),
            nodes=tuple(nodes),
            remedy=f"Take nodes with more memory than {fold(nodes)}, raise the limit, or end what else holds it there.",
        )
    if len(have) > len(blind) and not short:
        yield passed(f"memory of {len(have) - len(blind)} nodes")


@check(
    "MEM012",
    "host-memory-differs",
    plan=plan_machines,
    probes=(machine,),
    cost="reads /proc/meminfo and the memory nodes in /sys; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://github.com/facebookresearch/gcm", "https://docs.kernel.org/admin-guide/mm/numaperf.html"),
)
def host_memory_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node has less memory than most, or less of it on one of its own memory nodes.

    What it checks: the memory of each machine against the upper middle of all, and within each machine its memory
    nodes against each other, where the other machines have theirs even.

    Why it matters: a memory module that failed is switched off at the next boot. The node then has less bandwidth, and
    runs out first; ranks bound to the poor memory node reach across for every page.

    Example: node6 has 960 GiB where the others have 1024.

    Fix: have the module replaced; `dmidecode -t memory`, `numactl --hardware`.

    Known limits: nodes of different kinds that are meant to work together are told, too.

    Evidence: the DIMM check of facebookresearch/gcm; the kernel's guide to NUMA memory performance.
    """
    have = facts.observed(machine)
    yield from unseen(facts, machine, "memory")
    if len(fleet.nodes) < 2 or stand_ins(fleet):
        yield not_applicable("memory", "the job has one machine")
        return
    totals = {node: value.memory.total_bytes for node, value in have.items() if value.memory.total_bytes}
    if len(totals) < 2:
        if have:
            yield unknown("memory", "fewer than two nodes tell theirs")
        return
    usual = median_high(totals.values())
    less = {node: total for node, total in totals.items() if total < SHARE * usual}
    if less:
        node = min(less, key=lambda name: less[name])
        said = fold(f"{name} has {size(total)}" for name, total in less.items())
        yield failed(
            "memory: less",
            f"less memory than on the other nodes, which have {size(usual)}: {said}",
            at=Evidence("memory", size(less[node]), size(usual), "free -h; dmidecode -t memory", node),
            nodes=tuple(less),
            remedy=f"See whether a module failed on {fold(less)}: `dmidecode -t memory`, `dmesg | grep -i edac`.",
        )
    uneven = {node: words for node, value in have.items() if (words := _uneven(value.numa))}
    if uneven and len(uneven) * 2 < len(have):
        node, words = next(iter(uneven.items()))
        yield failed(
            "memory: uneven",
            f"memory is spread unevenly on {fold(uneven)}, and evenly on the other nodes: {words}",
            at=Evidence("memory nodes", words, "the same on each", "numactl --hardware", node),
            nodes=tuple(uneven),
            remedy=f"See whether a memory module failed on {fold(uneven)}: `dmidecode -t memory`.",
        )
    if not less and not (uneven and len(uneven) * 2 < len(have)):
        yield passed(f"memory of {len(totals)} nodes")


def _uneven(nodes: Sequence[NumaNode]) -> str:
    """Which memory node has less than nine tenths of the largest, among those that have any."""
    sizes = {node.number: node.memory_bytes for node in nodes if node.memory_bytes}
    poor = [number for number, amount in sizes.items() if amount < 0.9 * max(sizes.values())]
    return ", ".join(f"node {n} has {size(sizes[n])} of at most {size(max(sizes.values()))}" for n in poor)
