"""Whether the ranks of a node have cores enough, and no node fewer than the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median_high

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims, unseen
from preflight_checks.per_node import processes_of_node, ranks_of_node
from preflight_checks.probes.limits import Limits, limits

#: A rank with a GPU needs a core for Python and one for NCCL's proxy and the loader's pinning thread; sites give 2 to 4
#: (Primus preflight guide; NVIDIA/enroot#175).
CORES_PER_GPU_RANK = 2
#: Loader workers wait for disks part of the time; more than two for a core only take turns.
PROCESSES_PER_CORE = 2
#: Below this share of what most nodes have, a node holds up the others at every step.
SHARE = 0.9


def usable_cores(value: Limits) -> float | None:
    """Cores that a process may use at the same time: of the affinity mask, and by the quota; None if neither tells."""
    counts = [float(len(value.usable_cpus) or value.online_cpus or 0), value.cgroup.cpu_quota_cores]
    known = [count for count in counts if count]
    return min(known) if known else None


def restriction(value: Limits) -> str:
    """What keeps a process from using the whole machine, in words; empty when nothing does."""
    cores, online = usable_cores(value), value.online_cpus
    if cores is None or not online or cores >= online:
        return ""
    if value.cgroup.cpu_quota_cores == cores:
        return f"the CPU quota of {value.cgroup.cpu_quota_at} is {cores:g} of {online} cores"
    return f"its affinity mask holds {len(value.usable_cpus)} of {online} cores"


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    claims = ranks_of_node(job)[1]
    for node in fleet.reached:
        if job.launches:
            yield Request(probe_name(limits), node.name, context=True, because=claims)


@check(
    "CPU001",
    "too-few-usable-cores",
    plan=_plan,
    probes=(limits,),
    cost="reads the affinity mask and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/enroot#175", "facebookresearch/vissl#254", "onyx-dot-app/onyx#12351"),
)
def too_few_cores(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of a node may use cores enough for themselves and their loader workers.

    What it checks: the smaller of the affinity mask and the tightest CPU quota of all control groups around a rank,
    against one core for each rank (two with a GPU) and half a core for each loader worker. Workers too many for a
    machine that nothing holds back are information.

    Why it matters: cores that are visible and may not be used cost more than cores that are not there. Libraries
    start a thread for each, the kernel stops all of them for most of every period, and every other node waits: with a
    quota of 20 % a step took five times as long.

    Example: a container with `--cpus=2` for eight ranks; srun that binds all ranks to one core.

    Fix: `--cpus-per-task` for srun, a higher CPU limit for the container, fewer loader workers.

    Known limits: how much a rank computes on the CPU is not known. The mask is that of a process started like the
    ranks; a launcher that binds each rank is not seen.

    Evidence: NVIDIA/enroot#175, facebookresearch/vissl#254, onyx-dot-app/onyx#12351.
    """
    have = facts.observed(limits)
    yield from unseen(facts, limits, "usable cores")
    if not job.launches:
        yield not_applicable("usable cores", "the files start nothing on the nodes")
        return
    ranks, claims = ranks_of_node(job)
    processes, more = processes_of_node(job)
    gpus = gpu_claims(job)
    needed = ranks * (CORES_PER_GPU_RANK if gpus else 1)
    busy = math.ceil(processes / PROCESSES_PER_CORE)
    cores = {node: usable_cores(value) for node, value in have.items()}
    blind = [node for node, count in cores.items() if count is None]
    if blind:
        yield unknown(f"usable cores on {fold(blind)}", "neither an affinity mask nor a quota can be read there")
    known = {node: count for node, count in cores.items() if count is not None}
    short = {node: count for node, count in known.items() if count < max(needed, busy)}
    if known and not short:
        yield passed(f"usable cores on {len(known)} nodes")
    for count in sorted(set(short.values())):
        group = {node: have[node] for node in short if short[node] == count}
        # A machine that is as small as that, with workers more than it has cores for, is somebody's choice.
        chosen = count >= needed and not any(restriction(value) for value in group.values())
        yield _short(group, count, ranks, processes, (*claims, *more), Severity.INFO if chosen else None)


def _short(
    nodes: Mapping[str, Limits],
    cores: float,
    ranks: int,
    processes: int,
    claims: tuple[Claim, ...],
    severity: Severity | None,
) -> Verdict:
    node, value = next(iter(nodes.items()))
    why = restriction(value)
    who = f"{ranks} rank{'s' * (ranks != 1)}"
    if processes > ranks:
        who += f" with {processes - ranks} loader workers"
    throttled = value.cgroup.throttled if "quota" in why else None
    waits = f"; it has been kept waiting in {throttled:.0%} of all periods" if throttled else ""
    threads = not value.threads and "quota" in why
    return failed(
        f"usable cores: {cores:g}",
        f"{who} of {fold(nodes)} share {cores:g} usable core{'s' * (cores != 1)}" + (f": {why}{waits}" if why else ""),
        at=Evidence("usable cores", f"{cores:g}", f"one for each of {who}", "nproc; cat /sys/fs/cgroup/cpu.max", node),
        also=claims,
        nodes=tuple(nodes),
        remedy="Give the ranks more cores (srun --cpus-per-task, a higher CPU limit of the container or service), or "
        "start fewer loader workers."
        + (" Set OMP_NUM_THREADS: without it libraries start a thread for every visible core." if threads else ""),
        severity=severity,
        confidence=Confidence.HIGH if cores < ranks else None,
    )


@check(
    "CPU002",
    "usable-cores-differ",
    plan=_plan,
    probes=(limits,),
    cost="reads the affinity mask and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://slurm.schedmd.com/cpu_management.html", "NVIDIA/enroot#175"),
)
def cores_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node lets its ranks use fewer cores than most nodes do.

    What it checks: usable cores (affinity mask and CPU quota) of each node against the upper middle of all.

    Why it matters: ranks work in step, so the node with fewer cores sets the pace of all.

    Example: on node3 a leftover cpuset holds one core of 64; cores were switched off after a fault.

    Fix: find the control group or mask that holds them back, or leave the node out.

    Known limits: nodes of different kinds that are meant to work together are told, too.

    Evidence: Slurm's guide to CPU management; NVIDIA/enroot#175.
    """
    have = facts.observed(limits)
    yield from unseen(facts, limits, "usable cores")
    cores = {node: count for node, value in have.items() if (count := usable_cores(value)) is not None}
    if len(fleet.nodes) < 2:
        yield not_applicable("usable cores", "the job has one node")
        return
    if len(cores) < 2:
        if have:
            yield unknown("usable cores", "fewer than two nodes tell theirs")
        return
    usual = median_high(cores.values())
    fewer = {node: count for node, count in cores.items() if count < SHARE * usual}
    if not fewer:
        yield passed(f"usable cores of {len(cores)} nodes")
        return
    node = min(fewer, key=lambda name: fewer[name])
    why = restriction(have[node])
    said = fold(f"{name} has {count:g}" for name, count in fewer.items())
    yield failed(
        "usable cores: fewer",
        f"ranks may use fewer cores than on the other nodes, which have {usual:g}: {said}"
        + (f" ({node}: {why})" if why else ""),
        at=Evidence("usable cores", f"{fewer[node]:g}", f"{usual:g}", "nproc; cat /sys/fs/cgroup/cpu.max", node),
        nodes=tuple(fewer),
        remedy=f"See what holds the ranks back on {fold(fewer)}: `taskset -cp $$`, `cat /proc/self/cgroup`, `lscpu`.",
    )
