"""Checks of the processors of nodes, and of how many processes, how large and for how long, a rank may start."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median_high, median_low

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.comparison import GIB, processes_of_node, ranks_of_node, size
from preflight_checks.plans import has_launches, known_facts, on_every_node, only_if
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.requirements import fold, gpu_claims

#: Threads of one rank or loader worker: Python, autograd, NCCL's proxies, the loader's pinning, a small OpenMP pool.
#: Libraries that start one per core add 64 on 64 cores (MIC-DKFZ/nnUNet#1343).
THREADS_PER_PROCESS = 32
#: A CUDA context reserves addresses for all memory of the GPUs and the host; torch alone maps more than ten.
ADDRESS_SPACE_FLOOR = 64 * GIB


_limits_plan = on_every_node(limits, when=has_launches, because=lambda job: processes_of_node(job)[1], context=True)


@check(
    "LIM004",
    "too-few-processes-allowed",
    plan=_limits_plan,
    cost="reads limits and control groups, and counts the user's threads in /proc; milliseconds",
    without_root="nothing: only the user's own processes count",
    severity=Severity.ERROR,
)
@only_if(has_launches, "processes", "the files start nothing on the nodes")
def processes_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The user may start as many processes and threads on each node as the job needs.

    What it checks: the limit of processes (`ulimit -u`, which counts all threads of the user on the node) and the
    tightest pids limit of all control groups, less what runs already, compared with the ranks with their loader
    workers. Fewer than those is an error, fewer than 32 threads for each a warning.

    Why it matters: fork and pthread_create fail with "Resource temporarily unavailable", in one loader worker or
    in a library that then crashes, and the other ranks wait.

    Example: `ulimit -u` is 512, and eight ranks have eight loader workers each.

    Fix: LimitNPROC and TasksMax of the daemon that starts ranks, /etc/security/limits.d, `--pids-limit` of a
    container; OMP_NUM_THREADS where libraries start a thread for each core.

    Known limits: the number of library threads is an estimate. For root only control groups apply.
    """
    observed = yield from known_facts(facts, limits, "processes")
    processes, claims = processes_of_node(job)
    room = {node: _remaining(value) for node, value in observed.items()}
    short = {
        node: remaining
        for node, remaining in room.items()
        if remaining is not None and remaining[0] < processes * THREADS_PER_PROCESS
    }
    if observed and not short:
        yield passed(f"processes on {len(observed)} nodes")
    for certain in (True, False):
        group = {node: remaining for node, remaining in short.items() if (remaining[0] < processes + 1) is certain}
        if not group:
            continue
        node, (remaining, limit, what, command) = next(iter(group.items()))
        needs = (
            f"{processes} processes"
            if certain
            else f"{processes} processes with about {THREADS_PER_PROCESS} threads each"
        )
        yield failed(
            f"processes: {'certain' if certain else 'estimate'}",
            f"on {fold(group)} the job may start {max(0, remaining)} more processes and threads"
            f" ({what} is {limit}); it has {needs}",
            at=Evidence(what, f"{limit}, {limit - remaining} in use", f"{needs}", command, node),
            also=claims,
            nodes=tuple(group),
            remedy="Raise LimitNPROC and TasksMax of the daemon that starts ranks (slurmd, sshd), `ulimit -u`, or "
            "--pids-limit of the container; or set OMP_NUM_THREADS and start fewer loader workers.",
            certain=certain,
        )


def _remaining(value: Limits) -> tuple[int, int, str, str] | None:
    """How many more processes may start, the limit, its name and the command that shows it; None if unlimited."""
    found: list[tuple[int, int, str, str]] = []
    if value.processes_soft is not None and not value.processes_exempt:
        used = value.threads_of_user or 0
        found.append((value.processes_soft - used, value.processes_soft, "the limit of processes", "ulimit -u"))
    group = value.cgroup
    if group.processes_limit is not None:
        remaining = group.processes_limit - (group.processes_used or 0)
        what = f"pids.max of {group.processes_limit_at}"
        found.append((remaining, group.processes_limit, what, f"cat {group.processes_limit_at}/pids.max"))
    return min(found) if found else None


@check(
    "LIM005",
    "process-size-limited",
    plan=_limits_plan,
    cost="reads limits in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
)
@only_if(has_launches, "process size", "the files start nothing on the nodes")
def process_size(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No limit on address space or file size blocks a rank.

    What it checks: `ulimit -v` (with GPUs, less than 64 GiB) and `ulimit -f` inside the job context.

    Why it matters: CUDA reserves addresses for all memory of the machine, and fails with "out of memory" where it
    may not; a checkpoint that grows beyond the file limit ends its rank with SIGXFSZ.

    Example: a site's profile sets `ulimit -v 33554432` to protect its login nodes, and sshd of the nodes reads it.

    Fix: `ulimit -v unlimited -f unlimited` in the job script, or LimitAS and LimitFSIZE of the daemon.

    Known limits: without GPUs an address-space limit is not judged, because it may be intended.
    """
    observed = yield from known_facts(facts, limits, "process size")
    tight: dict[tuple[str, str, int], list[str]] = {}
    for node, value in observed.items():
        space, file = value.address_space_soft_bytes, value.file_size_soft_bytes
        if space is not None and space < ADDRESS_SPACE_FLOOR and gpu_claims(job):
            tight.setdefault(("address space", "ulimit -v", space), []).append(node)
        if file is not None:
            tight.setdefault(("file size", "ulimit -f", file), []).append(node)
    if observed and not tight:
        yield passed(f"process size on {len(observed)} nodes")
    for (what, shown, limit), nodes in tight.items():
        yield failed(
            f"process size: {what}",
            f"a rank on {fold(nodes)} has a limited {what}: {size(limit)}",
            at=Evidence(what, size(limit), "unlimited", shown, nodes[0]),
            nodes=tuple(nodes),
            run=(command(*shown.split(), "unlimited"),),
            remedy=f"`{shown} unlimited` in the job script, or the limit of the daemon that starts ranks.",
        )


#: A job that ends within this time is a test.
_SHORT_JOB_S = 24 * 3600


@check(
    "LIM006",
    "rank-time-or-priority-limited",
    plan=_limits_plan,
    cost="reads limits in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
)
@only_if(has_launches, "time and priority", "the files start nothing on the nodes")
def time_and_priority(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No rank is ended after some CPU time, or runs behind everything else on its node.

    What it checks: `ulimit -t` (below a day), the idle scheduling policy, and a niceness above that of most nodes,
    inside the job context.

    Why it matters: the kernel ends a rank that used up its CPU time with SIGXCPU, hours into the run. A rank of low
    priority waits for every other process of its node, and all other ranks wait for it.

    Example: limits.conf of a former login node holds `* hard cpu 60` (minutes), and node7 was one.

    Fix: remove the limit or the priority from the daemon that starts ranks (sshd, slurmd), limits.conf or the profile.

    Known limits: a niceness that all nodes share is assumed to be intended.
    """
    observed = yield from known_facts(facts, limits, "time and priority")
    usual = median_low(value.niceness for value in observed.values()) if observed else 0
    tight: dict[tuple[str, str, str, str], list[str]] = {}
    for node, value in observed.items():
        seconds = value.cpu_time_soft_s
        if seconds is not None and seconds < _SHORT_JOB_S:
            key = (f"is ended by SIGXCPU after {seconds} s of CPU time", f"{seconds} s", "unlimited", "ulimit -t")
            tight.setdefault(key, []).append(node)
        if value.idle:
            key = ("gets only the CPU time that others leave", "SCHED_IDLE", "SCHED_OTHER", "chrt -p $$")
            tight.setdefault(key, []).append(node)
        elif value.niceness > max(0, usual):
            key = (f"runs with a niceness of {value.niceness}", str(value.niceness), str(usual), "nice")
            tight.setdefault(key, []).append(node)
    if observed and not tight:
        yield passed(f"time and priority on {len(observed)} nodes")
    for (what, seen, expected, shown), nodes in tight.items():
        yield failed(
            f"time and priority: {shown}",
            f"a rank on {fold(nodes)} {what}",
            at=Evidence("time and priority", seen, expected, shown, nodes[0]),
            nodes=tuple(nodes),
            remedy="Remove the limit or priority from the daemon that starts ranks there (sshd, slurmd), from "
            "/etc/security/limits.d or from the profile.",
        )


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
)
@only_if(has_launches, "usable cores", "the files start nothing on the nodes")
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
