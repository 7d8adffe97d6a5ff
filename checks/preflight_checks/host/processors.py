"""Checks that the ranks of a node have enough cores, and no node has fewer than the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median_high

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import processes_of_node, ranks_of_node
from preflight_checks.plans import has_launches, known_facts, on_every_node
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.requirements import fold, gpu_claims

#: A rank with a GPU needs a core for Python and one for NCCL's proxy and the loader's pinning thread; sites give 2 to 4
#: (Primus preflight guide; NVIDIA/enroot#175).
CORES_PER_GPU_RANK = 2
#: Loader workers wait for disks part of the time; more than two per core only take turns.
PROCESSES_PER_CORE = 2
#: Below this share of what most nodes have, a node holds up the others at every step.
MIN_SHARE = 0.9


def usable_cores(value: Limits) -> float | None:
    """The number of cores that a process may use at once, by affinity mask and quota; None if neither is known."""
    counts = [float(len(value.usable_cpus) or value.online_cpus or 0), value.cgroup.cpu_quota_cores]
    known = [count for count in counts if count]
    return min(known) if known else None


def restriction(value: Limits) -> str:
    """What restricts a process to part of the machine, in words; empty if nothing does."""
    cores, online = usable_cores(value), value.online_cpus
    if cores is None or not online or cores >= online:
        return ""
    if value.cgroup.cpu_quota_cores == cores:
        return f"the CPU quota of {value.cgroup.cpu_quota_at} is {cores:g} of {online} cores"
    return f"its affinity mask holds {len(value.usable_cpus)} of {online} cores"


_plan = on_every_node(limits, when=has_launches, because=lambda job: ranks_of_node(job)[1], context=True)


@check(
    "CPU001",
    "too-few-usable-cores",
    plan=_plan,
    cost="reads the affinity mask and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/enroot#175", "facebookresearch/vissl#254", "onyx-dot-app/onyx#12351"),
)
def too_few_cores(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of a node may use enough cores for themselves and their loader workers.

    What it checks: the smaller of the affinity mask and the tightest CPU quota of all control groups around a rank,
    compared with one core for each rank (two with a GPU) and half a core for each loader worker. Too many workers for
    an unrestricted machine are information.

    Why it matters: visible cores that may not be used cost more than missing ones. Libraries start a thread for each,
    the kernel stops all of them for most of every period, and the other nodes wait: with a quota of 20 % a step took
    five times as long.

    Example: a container with `--cpus=2` for eight ranks; srun that binds all ranks to one core.

    Fix: `--cpus-per-task` for srun, a higher CPU limit for the container, fewer loader workers.

    Known limits: the CPU load of a rank is not known. The mask is that of a process started like the ranks; binding by
    the launcher is not seen.
    """
    observed = yield from known_facts(facts, limits, "usable cores")
    if not job.launches:
        yield not_applicable("usable cores", "the files start nothing on the nodes")
        return
    ranks, claims = ranks_of_node(job)
    processes, more = processes_of_node(job)
    gpus = gpu_claims(job)
    needed = ranks * (CORES_PER_GPU_RANK if gpus else 1)
    busy = math.ceil(processes / PROCESSES_PER_CORE)
    cores = {node: usable_cores(value) for node, value in observed.items()}
    blind = [node for node, count in cores.items() if count is None]
    if blind:
        yield unknown(f"usable cores on {fold(blind)}", "neither an affinity mask nor a quota can be read there")
    known = {node: count for node, count in cores.items() if count is not None}
    hidden = [node for node in known if observed[node].cgroup.hidden and known[node] >= max(needed, busy)]
    if hidden:
        reason = "a CPU quota may be set: /proc/self/cgroup names a group, but no cgroup file system is mounted"
        yield unknown(f"CPU quota on {fold(hidden)}", reason, nodes=hidden)
        known = {node: count for node, count in known.items() if node not in hidden}
    short = {node: count for node, count in known.items() if count < max(needed, busy)}
    if known and not short:
        yield passed(f"usable cores on {len(known)} nodes")
    for count in sorted(set(short.values())):
        group = {node: observed[node] for node in short if short[node] == count}
        # More workers than cores on a small machine are the user's choice.
        chosen = count >= needed and not any(restriction(value) for value in group.values())
        yield _too_few_finding(group, count, ranks, processes, (*claims, *more), Severity.INFO if chosen else None)


def _too_few_finding(
    nodes: Mapping[str, Limits],
    cores: float,
    ranks: int,
    processes: int,
    claims: tuple[Claim, ...],
    severity: Severity | None,
) -> Verdict:
    node, value = next(iter(nodes.items()))
    reason = restriction(value)
    who = f"{ranks} rank{'s' * (ranks != 1)}"
    if processes > ranks:
        who += f" with {processes - ranks} loader workers"
    throttled = value.cgroup.throttled if "quota" in reason else None
    waits = f"; it was throttled in {throttled:.0%} of all periods" if throttled else ""
    threads = not value.threads and "quota" in reason
    return failed(
        f"usable cores: {cores:g}",
        f"{who} of {fold(nodes)} share {cores:g} usable core{'s' * (cores != 1)}"
        + (f": {reason}{waits}" if reason else ""),
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
    cost="reads the affinity mask and the control groups in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("Slurm's guide to CPU management", "https://slurm.schedmd.com/cpu_management.html"),
        "NVIDIA/enroot#175",
    ),
)
def cores_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node lets its ranks use fewer cores than most nodes do.

    What it checks: usable cores (affinity mask and CPU quota) of each node, compared with the upper median of all.

    Why it matters: ranks work in lockstep, so the node with fewer cores sets the pace of all.

    Example: a leftover cpuset on node3 contains one core of 64; cores were disabled after a fault.

    Fix: find the control group or mask that restricts them, or exclude the node.

    Known limits: nodes of different kinds that are meant to work together are reported, too.
    """
    observed = yield from known_facts(facts, limits, "usable cores")
    cores = {node: count for node, value in observed.items() if (count := usable_cores(value)) is not None}
    if len(fleet.nodes) < 2:
        yield not_applicable("usable cores", "the job has one node")
        return
    if len(cores) < 2:
        if observed:
            yield unknown("usable cores", "the usable cores of fewer than two nodes are known")
        return
    usual = median_high(cores.values())
    fewer = {node: count for node, count in cores.items() if count < MIN_SHARE * usual}
    if not fewer:
        yield passed(f"usable cores of {len(cores)} nodes")
        return
    node = min(fewer, key=lambda name: fewer[name])
    reason = restriction(observed[node])
    counts = fold(f"{name} has {count:g}" for name, count in fewer.items())
    yield failed(
        "usable cores: fewer",
        f"ranks may use fewer cores than on the other nodes, which have {usual:g}: {counts}"
        + (f" ({node}: {reason})" if reason else ""),
        at=Evidence("usable cores", f"{fewer[node]:g}", f"{usual:g}", "nproc; cat /sys/fs/cgroup/cpu.max", node),
        nodes=tuple(fewer),
        remedy=f"Check what restricts the ranks on {fold(fewer)}: `taskset -cp $$`, `cat /proc/self/cgroup`, `lscpu`.",
    )
