"""Checks of the nodes' processors, and of the number, size and lifetime of processes that ranks may start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

from preflight.analysis.model_size import model_parameters, uses_less_memory
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.host.machines import plan_machines
from preflight_checks.plans import (
    GIB,
    MIB,
    combine_plans,
    comparable_limit,
    has_launches,
    has_several_nodes,
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    processes_of_node,
    ranks_of_node,
    size,
    warning_check,
    workers_of_rank,
    world_of,
)
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import NumaNode, machine
from preflight_checks.rdma.devices import demand_claims
from preflight_checks.requirements import backends, fold, gpu_claims, known_text, nodes_share_machine, scopes

#: Threads of one rank or loader worker: Python, autograd, NCCL's proxies, the loader's pinning, a small OpenMP pool.
#: Libraries that start one per core add 64 on 64 cores (MIC-DKFZ/nnUNet#1343).
THREADS_PER_PROCESS = 32
#: A CUDA context reserves addresses for all memory of the GPUs and the host; torch alone maps more than ten.
ADDRESS_SPACE_FLOOR = 64 * GIB


_limits_plan = on_every_node(limits, when=has_launches, because=lambda job: processes_of_node(job)[1], context=True)


@check("LIM004", "too-few-processes-allowed", plan=_limits_plan, severity=Severity.ERROR)
@only_if(has_launches, "processes", "the job's files start no processes on the nodes")
def processes_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The user may start as many processes and threads on each node as the job needs.

    What it checks: the process limit (`ulimit -u`, which counts all threads of the user on the node) and the tightest
    pids limit of all control groups, minus what is already running, compared with the ranks and their loader workers.
    Fewer than these is an error, fewer than 32 threads for each a warning.

    Why it matters: fork and pthread_create fail with "Resource temporarily unavailable", in one loader worker or
    in a library that then crashes, and the other ranks wait.

    Example: `ulimit -u` is 512, and eight ranks have eight loader workers each.

    Fix: raise LimitNPROC and TasksMax of the daemon that starts the ranks, /etc/security/limits.d, or a container's
    `--pids-limit`; set OMP_NUM_THREADS if libraries start a thread for each core.

    Known limits: the number of library threads is an estimate. For root, only control groups apply.
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
            f"on {fold(group)}, the job may start only {max(0, remaining)} more processes and threads ({what} is "
            f"{limit}), but it starts {needs}",
            at=Evidence(what, f"{limit}, {limit - remaining} in use", f"{needs}", command, node),
            also=claims,
            nodes=tuple(group),
            remedy="Raise LimitNPROC and TasksMax of the daemon that starts the ranks (slurmd, sshd), `ulimit -u`, "
            "or the container's --pids-limit; or set OMP_NUM_THREADS and start fewer loader workers.",
            certain=certain,
        )


def _remaining(value: Limits) -> tuple[int, int, str, str] | None:
    """Return the number of processes that may still start, the limit, its name, and a command that shows it; None if
    unlimited.
    """
    allowances: list[tuple[int, int, str, str]] = []
    if value.processes_soft is not None and not value.processes_exempt:
        used = value.threads_of_user or 0
        allowances.append((value.processes_soft - used, value.processes_soft, "the process limit", "ulimit -u"))
    group = value.cgroup
    if group.processes_limit is not None:
        remaining = group.processes_limit - (group.processes_used or 0)
        what = f"pids.max of {group.processes_limit_at}"
        allowances.append((remaining, group.processes_limit, what, f"cat {group.processes_limit_at}/pids.max"))
    return min(allowances) if allowances else None


@warning_check("LIM005", "process-size-limited", plan=_limits_plan)
@only_if(has_launches, "process size", "the job's files start no processes on the nodes")
def process_size(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No limit on address space or file size blocks a rank.

    What it checks: `ulimit -v` (with GPUs, less than 64 GiB) and `ulimit -f` inside the job context.

    Why it matters: CUDA reserves addresses for all memory of the machine, and fails with "out of memory" if that is not
    allowed; a checkpoint that exceeds the file limit ends its rank with SIGXFSZ.

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
            remedy=f"Put `{shown} unlimited` in the job script, or raise the limit of the daemon that starts the "
            "ranks.",
        )


#: A job that ends within this time is a test.
_SHORT_JOB_S = 24 * 3600


@warning_check("LIM006", "rank-time-or-priority-limited", plan=_limits_plan)
@only_if(has_launches, "CPU time and priority", "the job's files start no processes on the nodes")
def time_and_priority(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No rank is killed after some CPU time, or has a lower priority than everything else on its node.

    What it checks: `ulimit -t` (below a day), the idle scheduling policy, and a nice value above that of most nodes,
    inside the job context.

    Why it matters: the kernel ends a rank that used up its CPU time with SIGXCPU, hours into the run. A rank with low
    priority waits for every other process on its node, and all other ranks wait for it.

    Example: node7 is a former login node whose limits.conf contains `* hard cpu 60` (minutes).

    Fix: remove the limit or the priority from the daemon that starts the ranks (sshd, slurmd), limits.conf or the
    profile.

    Known limits: a nice value that all nodes share is assumed to be intended.
    """
    observed = yield from known_facts(facts, limits, "CPU time and priority")
    usual = median_low(value.niceness for value in observed.values()) if observed else 0
    tight: dict[tuple[str, str, str, str], list[str]] = {}
    for node, value in observed.items():
        seconds = value.cpu_time_soft_s
        if seconds is not None and seconds < _SHORT_JOB_S:
            key = (f"is killed by SIGXCPU after {seconds} s of CPU time", f"{seconds} s", "unlimited", "ulimit -t")
            tight.setdefault(key, []).append(node)
        if value.idle:
            key = ("gets only idle CPU time", "SCHED_IDLE", "SCHED_OTHER", "chrt -p $$")
            tight.setdefault(key, []).append(node)
        elif value.niceness > max(0, usual):
            key = (f"runs with a nice value of {value.niceness}", str(value.niceness), str(usual), "nice")
            tight.setdefault(key, []).append(node)
    if observed and not tight:
        yield passed(f"CPU time and priority on {len(observed)} nodes")
    for (what, seen, expected, shown), nodes in tight.items():
        yield failed(
            f"CPU time and priority: {shown}",
            f"a rank on {fold(nodes)} {what}",
            at=Evidence("CPU time and priority", seen, expected, shown, nodes[0]),
            nodes=tuple(nodes),
            remedy="Remove the limit or priority from the daemon that starts the ranks (sshd, slurmd), from "
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
    """Return the number of cores that a process may use, by affinity mask and quota; None if neither is known."""
    counts = [float(len(value.usable_cpus) or value.online_cpus or 0), value.cgroup.cpu_quota_cores]
    known = [count for count in counts if count]
    return min(known) if known else None


def restriction(value: Limits) -> str:
    """Return a description of the limit that confines a process to part of the machine; empty if there is none."""
    cores, online = usable_cores(value), value.online_cpus
    if cores is None or not online or cores >= online:
        return ""
    if value.cgroup.cpu_quota_cores == cores:
        return f"the CPU quota of {value.cgroup.cpu_quota_at} is {cores:g} of {online} cores"
    return f"its affinity mask contains {len(value.usable_cpus)} of {online} cores"


_plan = on_every_node(limits, when=has_launches, because=lambda job: ranks_of_node(job)[1], context=True)


@warning_check("CPU001", "too-few-usable-cores", plan=_plan)
@only_if(has_launches, "usable cores", "the job's files start no processes on the nodes")
def too_few_cores(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks on a node may use enough cores for themselves and their loader workers.

    What it checks: the smaller of the affinity mask and the tightest CPU quota of all control groups around a rank,
    compared with one core for each rank (two with a GPU) and half a core for each loader worker. Too many workers for
    an unrestricted machine are informational.

    Why it matters: visible cores that may not be used are worse than missing ones. Libraries start a thread for each,
    the kernel stops all of them for most of every period, and the other nodes wait: with a quota of 20 % a step took
    five times as long.

    Example: a container with `--cpus=2` for eight ranks; srun that binds all ranks to one core.

    Fix: `--cpus-per-task` for srun, a higher CPU limit for the container, fewer loader workers.

    Known limits: the CPU load of a rank is unknown. The mask is that of a process that is started like the ranks;
    binding by the launcher is not seen.
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
        yield unknown(f"usable cores on {fold(blind)}", "neither the affinity mask nor a CPU quota can be read there")
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
        + (" Set OMP_NUM_THREADS: without it, libraries start a thread for every visible core." if threads else ""),
        severity=severity,
        confidence=Confidence.HIGH if cores < ranks else None,
    )


@warning_check("CPU002", "usable-cores-differ", plan=_plan)
def cores_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node allows its ranks fewer cores than most nodes do.

    What it checks: usable cores (affinity mask and CPU quota) of each node, compared with the upper median of all.

    Why it matters: ranks work in lockstep, so the node with fewer cores sets the pace of all.

    Example: a leftover cpuset on node3 contains one core of 64; cores were disabled after a fault.

    Fix: find the control group or mask that restricts them, or exclude the node.

    Known limits: nodes of different types that are intended to work together are also reported.
    """
    observed = yield from known_facts(facts, limits, "usable cores")
    cores = {node: count for node, value in observed.items() if (count := usable_cores(value)) is not None}
    if len(fleet.nodes) < 2:
        yield not_applicable("usable cores", "the job has one node")
        return
    if len(cores) < 2:
        if observed:
            yield unknown("usable cores", "the usable cores are known for fewer than two nodes")
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
        f"ranks may use fewer cores than the {usual:g} of the other nodes: {counts}"
        + (f" ({node}: {reason})" if reason else ""),
        at=Evidence("usable cores", f"{fewer[node]:g}", f"{usual:g}", "nproc; cat /sys/fs/cgroup/cpu.max", node),
        nodes=tuple(fewer),
        remedy=f"Check what restricts the ranks on {fold(fewer)}: `taskset -cp $$`, `cat /proc/self/cgroup`, `lscpu`.",
    )


# Checks that a node has the memory that the job needs, and that it may use and lock it.


#: The default of Docker, containerd and Kubernetes for a container.
CONTAINER_DEFAULT_SHM = 64 * MIB
#: Below this size per rank or loader worker, transports and workers have run out of shared memory in real jobs
#: (NVIDIA/nccl#290: the container default was too small for more than one GPU).
SHM_PER_PROCESS = 64 * MIB
#: RDMA queues and buffers of one rank do not fit in less; AWS's suite warns under 16 GiB, Primus fails under 32 GiB.
MEMLOCK_FLOOR, MEMLOCK_COMFORT = GIB, 32 * GIB
#: Files that a Python process with torch opens before any connection, with room for data files.
FILES_BASE = 256


def _shm_users(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Return the number of processes of one node that share memory (ranks and loader workers); 0 for a single rank."""
    users, claims = processes_of_node(job)
    # Gloo uses only sockets; other backends may use shared memory.
    sockets_only = backends(job)[0] == {"gloo"} and not workers_of_rank(job)[0]
    return (users if users > 1 and not sockets_only else 0), claims


@check(
    "LIM001",
    "shm-too-small",
    plan=on_every_node(
        limits, when=lambda job, fleet: _shm_users(job)[0], because=lambda job: _shm_users(job)[1], context=True
    ),
    severity=Severity.ERROR,
)
def shm_too_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Shared memory is larger than a container's default if several processes share a node.

    What it checks: size and free space of /dev/shm as a rank sees it.

    Why it matters: NCCL's shared-memory transport and DataLoader workers die with a bus error or "unhandled system
    error" minutes into the run.

    Example: eight ranks in a container with 64 MiB of /dev/shm.

    Fix: `--shm-size` or `--ipc=host` for Docker; a memory-backed emptyDir at /dev/shm in Kubernetes.

    Known limits: the required size depends on the batch; free space is measured at this moment.
    """
    users, claims = _shm_users(job)
    if not users:
        yield not_applicable("shared memory", "no node certainly has processes that share memory")
        return
    observed = yield from known_facts(facts, limits, "shared memory")
    tiny = {node: v for node, v in observed.items() if comparable_limit(v.shm_total_bytes) <= CONTAINER_DEFAULT_SHM}
    full = {
        node: v
        for node, v in observed.items()
        if node not in tiny and comparable_limit(v.shm_free_bytes) < users * SHM_PER_PROCESS
    }
    blind = {node: v for node, v in observed.items() if v.shm_total_bytes is None}
    for problem in dict.fromkeys(value.shm_problem for value in blind.values()):
        nodes = [node for node, value in blind.items() if value.shm_problem == problem]
        yield unknown(f"shared memory on {fold(nodes)}", f"/dev/shm cannot be read: {problem}")
    if tiny:
        node, value = next(iter(tiny.items()))
        yield failed(
            "shared memory: size",
            f"/dev/shm has only {size(value.shm_total_bytes)} on {fold(tiny)}, but {users} processes of the job "
            "share it",
            at=_shm_evidence(node, value),
            also=claims,
            nodes=tuple(tiny),
            remedy="Start the container with --shm-size=16g or --ipc=host (Docker), or mount an emptyDir with "
            "medium: Memory at /dev/shm (Kubernetes).",
        )
    if full:
        node, value = next(iter(full.items()))
        yield failed(
            "shared memory: free",
            f"/dev/shm has {size(value.shm_free_bytes)} free on {fold(full)}, less than "
            f"{size(SHM_PER_PROCESS)} for each of the {users} processes that share it",
            at=_shm_evidence(node, value),
            also=claims,
            nodes=tuple(full),
            remedy=f"Remove files of earlier runs from /dev/shm on {fold(full)}, or enlarge it.",
            certain=False,
        )
    if len(observed) > len(blind) and not tiny and not full:
        yield passed(f"shared memory on {len(observed) - len(blind)} nodes")


def _shm_evidence(node: str, value: Limits) -> Evidence:
    seen = f"{size(value.shm_total_bytes)}, {size(value.shm_free_bytes)} free"
    return Evidence("/dev/shm", seen, f"more than {size(CONTAINER_DEFAULT_SHM)}", "df -h /dev/shm", node)


@check(
    "LIM002",
    "memlock-limited",
    plan=on_every_node(limits, when=has_several_nodes, needed_by=demand_claims, context=True),
    severity=Severity.ERROR,
)
def memlock_limited(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Ranks may lock enough memory for RDMA.

    What it checks: the locked-memory limit inside the job context, on nodes that have RDMA devices.

    Why it matters: registering buffers fails with "Cannot allocate memory", far from the cause; daemons often give
    a lower limit than a login shell shows.

    Example: `ulimit -l` prints unlimited after ssh, but ranks that slurmd starts get 64 KiB.

    Fix: LimitMEMLOCK=infinity for the daemon that starts the ranks; `--ulimit memlock=-1` for containers.

    Known limits: only checked if the job uses NCCL without disabling InfiniBand, or UCX with RDMA.
    """
    claims = demand_claims(job)
    observed = facts.observed(limits)
    blind = tuple(missing_facts(facts, limits, "locked memory"))
    with_rdma = {node: value for node, value in observed.items() if value.rdma_devices}
    if not claims or len(fleet.nodes) < 2 or (observed and not with_rdma and not blind):
        yield not_applicable("locked memory", "the job does not use RDMA, or no node has RDMA devices")
        return
    yield from blind
    low = {n: v for n, v in with_rdma.items() if comparable_limit(v.locked_memory_soft_bytes) < MEMLOCK_COMFORT}
    if with_rdma and not low:
        yield passed(f"locked memory on {len(with_rdma)} nodes")
    for hard in (True, False):
        group = {n: v for n, v in low.items() if (comparable_limit(v.locked_memory_soft_bytes) < MEMLOCK_FLOOR) is hard}
        if group:
            node, value = next(iter(group.items()))
            limit = size(value.locked_memory_soft_bytes)
            yield failed(
                f"locked memory: {'floor' if hard else 'budget'}",
                f"a rank on {fold(group)} may lock only {limit} of memory, but RDMA needs locked memory to register "
                f"buffers ({fold(value.rdma_devices, 2)})",
                at=Evidence("locked-memory limit", limit, "unlimited", "ulimit -l", node),
                also=claims,
                nodes=tuple(group),
                remedy="Set LimitMEMLOCK=infinity for the daemon that starts the ranks (slurmd, sshd, containerd), "
                "or --ulimit memlock=-1 for the container.",
                certain=hard,
            )


def _plan_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    world, claims = world_of(job, fleet)
    if world > 1:
        for node in fleet.reached:
            yield Request(probe_name(limits), node.name, context=True, because=claims)


@check("LIM003", "open-files-limit", plan=_plan_files, probes=(limits,), severity=Severity.ERROR)
def open_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A rank may open enough files for its connections.

    What it checks: the soft limit of open files inside the job context, compared with an estimate: 256 for Python and
    data, and four for every rank of the job (store, Gloo's full mesh, NCCL's rings).

    Why it matters: a job works on one node but fails on four, with "Too many open files" in a library.

    Example: a limit of 1024 and 256 ranks.

    Fix: raise the limit for the daemon that starts the ranks, or `ulimit -n 65536` in the job script.

    Known limits: an estimate; below the number of ranks it is an error, otherwise a warning.
    """
    world, claims = world_of(job, fleet)
    if world < 2:
        yield not_applicable("open files", "the job has one rank")
        return
    observed = yield from known_facts(facts, limits, "open files")
    needed = FILES_BASE + 4 * world
    # One connection per other rank plus the files of any Python process are certain to be needed.
    certain = world + 32
    is_below: Callable[[Limits, float], bool] = lambda value, bound: comparable_limit(value.open_files_soft) < bound  # noqa: E731
    short = {node: value for node, value in observed.items() if is_below(value, needed)}
    if observed and not short:
        yield passed(f"open files on {len(observed)} nodes")
    for hard in (True, False):
        group = {node: value for node, value in short.items() if is_below(value, certain) is hard}
        if not group:
            continue
        node, value = next(iter(group.items()))
        room = min([65536, *(v.open_files_hard for v in group.values() if v.open_files_hard is not None)])
        hard_limit = "unlimited" if value.open_files_hard is None else str(value.open_files_hard)
        yield failed(
            "open-files limit" if hard else "open-files limit (estimate)",
            f"a rank on {fold(group)} may open only {value.open_files_soft} files, but {world} ranks need about "
            f"{needed}",
            at=Evidence(
                "open-files limit", f"{value.open_files_soft} (hard {hard_limit})", f"{needed}", "ulimit -n", node
            ),
            also=claims,
            nodes=tuple(group),
            remedy="Put `ulimit -n 65536` in the job script (up to the hard limit), or raise LimitNOFILE of the "
            "daemon that starts the ranks.",
            run=(command("ulimit", "-n", str(room)),),
            certain=hard,
        )


#: A node with less than this fraction of the usual memory has a failed module; the memory that the kernel reserves for
#: itself is a smaller difference.
MIN_MEMORY_SHARE = 0.95
#: Less free memory than this counts as none: importing torch alone takes half of it.
MIN_FREE_BYTES = GIB
#: Bytes of a parameter with the optimizer in host memory: 32-bit master weight, momentum, variance and gradient
#: (Ren et al., ZeRO-Offload, arXiv 2101.06840); and of the weights if they are offloaded, too.
OFFLOADED_STATES, OFFLOADED_WEIGHT = 16, 2
_memory_plan = combine_plans(plan_machines, on_every_node(limits, when=has_launches, context=True))


@dataclass(frozen=True, slots=True)
class _Need:
    """The bytes that each node needs, the purpose, and the claims that give it."""

    amount: float
    purpose: str
    claims: tuple[Claim, ...]


def _needs(job: Job, nodes: int) -> Iterator[_Need]:
    """Yield the least memory that the job needs per node, and the memory that it requests from its scheduler."""
    for launch, scope in ((launch, launch.scope) for launch in job.launches):
        named = model_parameters(job, scope)
        if named is None or uses_less_memory(launch) or known_text(job, "offload_optimizer_device", scope) != "cpu":
            continue
        weights = known_text(job, "offload_param_device", scope) == "cpu"
        each = OFFLOADED_STATES + (OFFLOADED_WEIGHT if weights else 0)
        amount = named[0] * each // max(1, nodes)
        claims = (*job.setting("offload_optimizer_device", scope), named[1])
        yield _Need(amount, f"the optimizer needs {size(amount)} of host memory", claims)
    for scope in scopes(job):
        for claim in job.setting("memory_per_node_mib", scope):
            found = [value for value in claim.alternatives if isinstance(value, int) and value > 0]
            if found:
                # A scheduler counts the kernel's share as well.
                yield _Need(
                    min(found) * 2**20 * MIN_MEMORY_SHARE, f"the job requests {size(min(found) * 2**20)}", (claim,)
                )


@warning_check("MEM011", "host-memory-short", plan=_memory_plan)
def host_memory_short(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each node has the memory that the job needs, and enough of it is free.

    What it checks: the memory of the machine, or the tightest limit of the control groups around a rank if that is
    less, compared with the size of an optimizer that is offloaded to the CPU (16 bytes per parameter, divided by the
    number of nodes), the job's memory request, and one GiB that must be free before anything starts.

    Why it matters: the kernel silently kills a rank (exit code -9), and the others wait for it.

    Example: a model of 13 billion parameters offloaded on two nodes with 64 GiB.

    Fix: use nodes with more memory, more nodes or a higher limit, or end other processes that use the memory.

    Known limits: this is a lower bound; page cache counts as free. Only models with their size in the name are known.
    """
    observed = yield from known_facts(facts, machine, "memory")
    observed_limits = facts.observed(limits)
    needs = list(_needs(job, len(fleet.nodes)))
    blind = [node for node, value in observed.items() if value.memory.total_bytes is None]
    if blind:
        yield unknown(f"memory of {fold(blind)}", "the kernel does not report its size")
    short: dict[str, dict[str, str]] = {}
    claims: dict[str, tuple[Claim, ...]] = {}
    for node, value in observed.items():
        total, free = value.memory.total_bytes, value.memory.available_bytes
        group = observed_limits[node].cgroup if node in observed_limits else None
        limited_by = "the machine"
        if group is not None and group.memory_limit_bytes is not None and group.memory_limit_bytes < (total or 0):
            total, limited_by = group.memory_limit_bytes, group.memory_limit_at
            free = min(free or total, total - (group.memory_used_bytes or 0))
        if total is None:
            continue
        for need in needs:
            if total < need.amount:
                short.setdefault(need.purpose, {})[node] = f"{limited_by} has {size(total)}"
                claims[need.purpose] = need.claims
        if free is not None and free < MIN_FREE_BYTES:
            short.setdefault("almost none is free", {})[node] = f"{limited_by} has {size(free)} of {size(total)} left"
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


@warning_check("MEM012", "host-memory-differs", plan=plan_machines)
def host_memory_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node has less memory than most nodes, or less memory on one of its own memory nodes.

    What it checks: the memory of each machine compared with the upper median of all, and its memory nodes with each
    other if the memory nodes of other machines are even.

    Why it matters: a failed memory module is disabled at the next boot. The node then has less bandwidth and runs out
    of memory first; ranks bound to the smaller memory node access the other for every page.

    Example: node6 has 960 GiB, but the others have 1024.

    Fix: have the module replaced; `dmidecode -t memory`, `numactl --hardware`.

    Known limits: nodes of different types that are intended to work together are also reported.
    """
    observed = yield from known_facts(facts, machine, "memory")
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("memory", "the job has one machine")
        return
    totals = {node: value.memory.total_bytes for node, value in observed.items() if value.memory.total_bytes}
    if len(totals) < 2:
        if observed:
            yield unknown("memory", "the memory size is known for fewer than two nodes")
        return
    usual = median_high(totals.values())
    less = {node: total for node, total in totals.items() if total < MIN_MEMORY_SHARE * usual}
    if less:
        node = min(less, key=lambda name: less[name])
        sizes = fold(f"{name} has {size(total)}" for name, total in less.items())
        yield failed(
            "memory: less",
            f"less memory than the {size(usual)} of the other nodes: {sizes}",
            at=Evidence("memory", size(less[node]), size(usual), "free -h; dmidecode -t memory", node),
            nodes=tuple(less),
            remedy=f"Check whether a module failed on {fold(less)}: `dmidecode -t memory`, `dmesg | grep -i edac`.",
        )
    uneven = {node: words for node, value in observed.items() if (words := _smallest_node_text(value.numa))}
    if uneven and len(uneven) * 2 < len(observed):
        node, words = next(iter(uneven.items()))
        yield failed(
            "memory: uneven",
            f"memory is spread unevenly over the memory nodes of {fold(uneven)}, but evenly on the other nodes: "
            f"{words}",
            at=Evidence("memory nodes", words, "the same on each memory node", "numactl --hardware", node),
            nodes=tuple(uneven),
            remedy=f"Check whether a memory module failed on {fold(uneven)}: `dmidecode -t memory`.",
        )
    if not less and not (uneven and len(uneven) * 2 < len(observed)):
        yield passed(f"memory of {len(totals)} nodes")


def _smallest_node_text(nodes: Sequence[NumaNode]) -> str:
    """Return the memory node with less than nine tenths of the largest, among those with any memory."""
    sizes = {node.number: node.memory_bytes for node in nodes if node.memory_bytes}
    poor = [number for number, amount in sizes.items() if amount < 0.9 * max(sizes.values())]
    return ", ".join(f"memory node {n} has {size(sizes[n])}, the largest has {size(max(sizes.values()))}" for n in poor)
