"""Whether a node lets the job start all its processes and threads, and lets them be as large as they must."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, command, failed, not_applicable, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims, unseen
from preflight_checks.per_node import GIB, processes_of_node, size
from preflight_checks.probes.limits import Limits, limits

#: Threads of one rank or loader worker: Python, autograd, NCCL's proxies, the loader's pinning, a small OpenMP pool.
#: Libraries that start one for each of 64 cores need as many (MIC-DKFZ/nnUNet#1343).
THREADS_EACH = 32
#: A CUDA context reserves addresses for all memory of the GPUs and the host; torch alone maps more than ten.
ADDRESS_SPACE_FLOOR = 64 * GIB


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    claims = processes_of_node(job)[1]
    for node in fleet.reached:
        if job.launches:
            yield Request(probe_name(limits), node.name, context=True, because=claims)


@check(
    "LIM004",
    "too-few-processes-allowed",
    plan=_plan,
    probes=(limits,),
    cost="reads limits and control groups, and counts the user's threads in /proc; milliseconds",
    without_root="where /proc hides processes of others only the user's own are counted, which are those that matter",
    severity=Severity.ERROR,
    evidence=("MIC-DKFZ/nnUNet#1343", "OpenMathLib/OpenBLAS#1668", "vladmandic/sdnext#2642"),
)
def processes_allowed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The user may start as many processes and threads on each node as the job needs.

    What it checks: the limit of processes (`ulimit -u`, which counts all threads of the user on the node) and the
    tightest pids limit of all control groups, less what runs already, against the ranks with their loader workers.
    Fewer than those is an error, fewer than 32 threads for each a warning.

    Why it matters: fork and pthread_create fail with "Resource temporarily unavailable", in one loader worker or
    in a library that then crashes, and the other ranks wait.

    Example: `ulimit -u` is 512, and eight ranks have eight loader workers each.

    Fix: LimitNPROC and TasksMax of the daemon that starts ranks, /etc/security/limits.d, `--pids-limit` of a
    container; OMP_NUM_THREADS where libraries start a thread for each core.

    Known limits: how many threads libraries start is an estimate. Root is held to control groups only.

    Evidence: MIC-DKFZ/nnUNet#1343, OpenMathLib/OpenBLAS#1668, vladmandic/sdnext#2642.
    """
    have = facts.observed(limits)
    yield from unseen(facts, limits, "processes")
    if not job.launches:
        yield not_applicable("processes", "the files start nothing on the nodes")
        return
    processes, claims = processes_of_node(job)
    room = {node: _room(value) for node, value in have.items()}
    short = {node: left for node, left in room.items() if left is not None and left[0] < processes * THREADS_EACH}
    if have and not short:
        yield passed(f"processes on {len(have)} nodes")
    for certain in (True, False):
        group = {node: left for node, left in short.items() if (left[0] < processes + 1) is certain}
        if not group:
            continue
        node, (left, limit, what, command) = next(iter(group.items()))
        needs = f"{processes} processes" if certain else f"{processes} processes with about {THREADS_EACH} threads each"
        yield failed(
            f"processes: {'certain' if certain else 'estimate'}",
            f"on {fold(group)} the job may start {max(0, left)} more processes and threads ({what} is {limit}); it has "
            f"{needs}",
            at=Evidence(what, f"{limit}, {limit - left} in use", f"{needs}", command, node),
            also=claims,
            nodes=tuple(group),
            remedy="Raise LimitNPROC and TasksMax of the daemon that starts ranks (slurmd, sshd), `ulimit -u`, or "
            "--pids-limit of the container; or set OMP_NUM_THREADS and start fewer loader workers.",
            severity=None if certain else Severity.WARNING,
            confidence=None if certain else Confidence.MEDIUM,
        )


def _room(value: Limits) -> tuple[int, int, str, str] | None:
    """How many more may be started, by which limit, its name and how to see it; None when nothing limits."""
    found: list[tuple[int, int, str, str]] = []
    if value.processes_soft is not None and not value.processes_exempt:
        used = value.threads_of_user or 0
        found.append((value.processes_soft - used, value.processes_soft, "the limit of processes", "ulimit -u"))
    group = value.cgroup
    if group.processes_limit is not None:
        left = group.processes_limit - (group.processes_used or 0)
        what = f"pids.max of {group.processes_limit_at}"
        found.append((left, group.processes_limit, what, f"cat {group.processes_limit_at}/pids.max"))
    return min(found) if found else None


@check(
    "LIM005",
    "process-size-limited",
    plan=_plan,
    probes=(limits,),
    cost="reads limits in the job context; milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://man7.org/linux/man-pages/man2/getrlimit.2.html", "OpenMathLib/OpenBLAS#1668"),
)
def process_size(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No limit on address space or file size stands in the way of a rank.

    What it checks: `ulimit -v` (with GPUs, less than 64 GiB) and `ulimit -f` inside the job context.

    Why it matters: CUDA reserves addresses for all memory of the machine, and fails with "out of memory" where it
    may not; a checkpoint that grows beyond the file limit ends its rank with SIGXFSZ.

    Example: a site's profile sets `ulimit -v 33554432` to protect its login nodes, and sshd of the nodes reads it.

    Fix: `ulimit -v unlimited -f unlimited` in the job script, or LimitAS and LimitFSIZE of the daemon.

    Known limits: without GPUs an address-space limit is not judged, because it may be meant.

    Evidence: getrlimit(2); OpenMathLib/OpenBLAS#1668.
    """
    have = facts.observed(limits)
    yield from unseen(facts, limits, "process size")
    if not job.launches:
        yield not_applicable("process size", "the files start nothing on the nodes")
        return
    tight: dict[tuple[str, str, int], list[str]] = {}
    for node, value in have.items():
        space, file = value.address_space_soft_bytes, value.file_size_soft_bytes
        if space is not None and space < ADDRESS_SPACE_FLOOR and gpu_claims(job):
            tight.setdefault(("address space", "ulimit -v", space), []).append(node)
        if file is not None:
            tight.setdefault(("file size", "ulimit -f", file), []).append(node)
    if have and not tight:
        yield passed(f"process size on {len(have)} nodes")
    for (what, shown, limit), nodes in tight.items():
        yield failed(
            f"process size: {what}",
            f"a rank on {fold(nodes)} has a limited {what}: {size(limit)}",
            at=Evidence(what, size(limit), "unlimited", shown, nodes[0]),
            nodes=tuple(nodes),
            run=(command(*shown.split(), "unlimited"),),
            remedy=f"`{shown} unlimited` in the job script, or the limit of the daemon that starts ranks.",
        )
