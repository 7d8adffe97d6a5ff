"""What an earlier run left behind on the nodes, that the next one stumbles over."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import endpoints, fold, gpu_claims, unseen
from preflight_checks.probes.leftovers import Leftovers, Process, leftovers, locks

_COST = "reads /proc of every process once and lists /dev/shm, a tenth of a second on an ordinary node"
_WITHOUT_ROOT = "which ports processes of other users hold, and what they have mapped"
MIB, GIB = 2**20, 2**30
#: A build of an extension takes minutes; a lock older than this, with no compiler running, has no owner.
STALE_LOCK_S = 900.0
#: Shared memory that nobody uses: worth a warning above this, or above this part of all.
MUCH_SHM, MUCH_SHM_PART = 4 * GIB, 0.25
_STATES = {"D": "stuck in the kernel", "T": "stopped", "t": "held by a debugger", "Z": "dead and not collected"}


def _programs(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(posixpath.basename(launch.program) for launch in job.launches if launch.program))


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if not job.launches:
        return
    ports = sorted({endpoint.port for endpoint in endpoints(job) if endpoint.port})
    params = {"programs": _programs(job), "ports": ports}
    for node in fleet.reached:
        yield Request(probe_name(leftovers), node.name, params)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _spoken(process: Process) -> str:
    notes = [f"{_age(process.age_s)} old"]
    if process.orphan:
        notes.append("without a parent")
    if process.ports:
        notes.append("listens on " + ", ".join(map(str, process.ports)))
    if process.state in _STATES:
        notes.append(_STATES[process.state])
    return f"process {process.pid} ({', '.join(notes)})"


def _of_a_run(process: Process) -> bool:
    """Whether it is of the job's user and plainly part of a run; a lone worker only when what made it is gone."""
    return process.own and process.state != "Z" and (process.what != "worker" or process.orphan)


@check(
    "LFT001",
    "processes-left-over",
    plan=_plan,
    probes=(leftovers,),
    cost=_COST,
    without_root=_WITHOUT_ROOT,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#4293", "microsoft/pai#3372", "PaddlePaddle/PaddleScience#1195", "apache/mxnet#4242"),
)
def processes_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No process of an earlier run of this job is still there.

    What it checks: processes of the job's user that run one of the job's programs or a launcher, parameter servers, and
    data loader workers whose parent is gone.

    Why it matters: they hold the job's ports, GPU memory and shared memory, answer the new ranks in the old run's
    name, or take the processor from one node.

    Example: a parameter server of last night's run still listens on port 6170 of node2.

    Fix: look at the process, and end it.

    Known limits: another run of the same user on purpose looks the same. Nothing is ever ended here. A port that is
    taken is PRT011's.

    Evidence: pytorch/pytorch#4293, microsoft/pai#3372, PaddlePaddle/PaddleScience#1195, apache/mxnet#4242.
    """
    if not job.launches:
        yield not_applicable("processes", "the job starts nothing")
        return
    yield from unseen(facts, leftovers, "processes of earlier runs")
    have = facts.observed(leftovers)
    found: dict[tuple[str, str], list[tuple[str, Process]]] = {}
    for node, value in have.items():
        for process in value.processes:
            if _of_a_run(process):
                found.setdefault((process.what, process.name), []).append((node, process))
    for (what, name), processes in found.items():
        yield _left_over(what, name, processes)
    if have and not found:
        yield passed(f"processes on {len(have)} nodes")


_WHAT = {"program": "run {}", "server": "serve {}", "launcher": "belong to {}", "worker": "are workers of {}"}


def _left_over(what: str, name: str, processes: list[tuple[str, Process]]) -> Verdict:
    nodes = tuple(dict.fromkeys(node for node, _ in processes))
    node, process = processes[0]
    pids = " ".join(str(p.pid) for n, p in processes if n == node)
    shown = fold((f"{_spoken(p)} on {n}" for n, p in processes), 4)
    return failed(
        f"{name} on {fold(nodes)}",
        f"{'a process is' if len(processes) == 1 else f'{len(processes)} processes are'} there already that "
        f"{_WHAT[what].format(name)}: {shown}",
        at=Evidence("processes", process.command, "none", f"ps -o pid,ppid,lstart,stat,args -p {pids}", node),
        nodes=nodes,
        remedy=f"If no other run of yours needs them, end them: `ssh {node} kill {pids}`"
        + (f", and likewise on {fold(nodes[1:])}." if len(nodes) > 1 else "."),
        run=[command("kill", *(str(p.pid) for n, p in processes if n == each), on=(each,)) for each in nodes],
    )


@check(
    "LFT002",
    "processes-stuck",
    plan=_plan,
    probes=(leftovers,),
    cost=_COST,
    without_root=_WITHOUT_ROOT,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#4293", "https://www.kernel.org/doc/html/latest/filesystems/proc.html"),
)
def processes_stuck(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No process of an earlier run is stuck in the kernel or stopped.

    What it checks: the state of processes that run the job's program or a launcher, twice for those in state D.

    Why it matters: a process that is stuck in the kernel cannot be ended. It holds its GPU or its mount until the node
    is started anew, and whatever stuck it will likely stick the next run.

    Example: a rank waits for ever in the NVIDIA driver, or for a dead NFS server.

    Fix: start the node anew, or take it out of the job; continue or end what is stopped.

    Known limits: processes of other users are told apart only as root.

    Evidence: pytorch/pytorch#4293; proc(5).
    """
    if not job.launches:
        yield not_applicable("processes", "the job starts nothing")
        return
    yield from unseen(facts, leftovers, "states of processes")
    have = facts.observed(leftovers)
    found: dict[str, list[tuple[str, Process]]] = {}
    for node, value in have.items():
        for process in value.processes:
            if process.state in ("D", "T", "t"):
                found.setdefault(process.state, []).append((node, process))
    for state, processes in found.items():
        nodes = tuple(dict.fromkeys(node for node, _ in processes))
        node, process = processes[0]
        remedy = (
            f"Nothing ends them: start {fold(nodes)} anew, or take it out of the job."
            if state == "D"
            else f"`ssh {node} kill -CONT {process.pid}` lets it go on, `kill -KILL {process.pid}` ends it."
        )
        yield failed(
            f"{_STATES[state]} on {fold(nodes)}",
            f"processes of {process.name} are {_STATES[state]}: {fold((f'{p.pid} on {n}' for n, p in processes), 4)}",
            at=Evidence("processes", f"state {state}", "R or S", f"cat /proc/{process.pid}/stack", node),
            nodes=nodes,
            remedy=remedy,
        )
    if have and not found:
        yield passed(f"states of processes on {len(have)} nodes")


@check(
    "LFT003",
    "shared-memory-left-over",
    plan=_plan,
    probes=(leftovers,),
    cost=_COST,
    without_root=_WITHOUT_ROOT,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#290", "fal-ai-community/video-diffusion-speedrun#2"),
)
def shared_memory_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Killed runs left little in shared memory.

    What it checks: files in /dev/shm that torch, NCCL, Open MPI, UCX, Paddle or Ray make, which no living process has
    mapped.

    Why it matters: they stay until the node is started anew. When they fill /dev/shm, loader workers and NCCL die of a
    bus error in a run that has nothing to do with them.

    Example: 40 GiB of torch_* after a week of killed runs.

    Fix: remove them.

    Known limits: without root, files of other users are not told apart from such in use, and left alone.

    Evidence: NVIDIA/nccl#290.
    """
    if not job.launches:
        yield not_applicable("shared memory", "the job starts nothing")
        return
    yield from unseen(facts, leftovers, "shared memory")
    have = facts.observed(leftovers)
    left = {node: value for node, value in have.items() if _own_bytes(value) >= MIB}
    much = {node: value for node, value in left.items() if _is_much(value)}
    little = {node: value for node, value in left.items() if node not in much}
    for group, severity in ((much, None), (little, Severity.INFO)):
        if not group:
            continue
        node, value = max(group.items(), key=lambda item: _own_bytes(item[1]))
        of = fold(sorted({segment.of for segment in value.segments if segment.own}), 4)
        names = sorted({f"/dev/shm/{segment.name[:5]}*" for segment in value.segments if segment.own})[:4]
        yield failed(
            f"shared memory on {fold(group)}",
            f"files of {of} that nobody uses take {_size(_own_bytes(value))} of /dev/shm on {node}"
            + (f", and some on {fold(name for name in group if name != node)}" if len(group) > 1 else ""),
            at=Evidence("/dev/shm", _size(_own_bytes(value)), "little", "ls -l /dev/shm", node),
            nodes=tuple(group),
            remedy=f"Where no run is going on: `ssh {node} 'rm -f {' '.join(names)}'`.",
            severity=severity,
        )
    if have and not left:
        yield passed(f"shared memory on {len(have)} nodes")


def _own_bytes(value: Leftovers) -> int:
    return sum(segment.size_bytes for segment in value.segments if segment.own and segment.age_s > 60.0)


def _is_much(value: Leftovers) -> bool:
    taken = _own_bytes(value)
    return taken > MUCH_SHM or (value.shm_total_bytes is not None and taken > MUCH_SHM_PART * value.shm_total_bytes)


def _size(value: int) -> str:
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _compiles(job: Job) -> bool:
    """Whether the job may compile extensions of torch: DeepSpeed does on first use, other jobs on GPUs may."""
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches) or bool(job.about("deepspeed_key"))
    return deepspeed or bool(gpu_claims(job))


def _plan_locks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if job.launches and _compiles(job):
        yield from _plan(job, fleet, facts)
        for node in fleet.reached:
            yield Request(probe_name(locks), node.name, context=True)


@check(
    "LFT004",
    "extension-lock-left-over",
    plan=_plan_locks,
    probes=(locks, leftovers),
    cost="lists torch's folder of extensions, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#189245", "PASSIONLab/OpenEquivariance#207", "sgl-project/sglang#35989"),
)
def extension_lock_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No build of a torch extension left its lock behind.

    What it checks: lock files in torch's folder of extensions that are older than a build takes, while no compiler runs
    on any node.

    Why it matters: torch before 2.14 waits for such a file to go away, for ever and in silence: every rank hangs at the
    first extension that DeepSpeed or the script builds.

    Example: a run was cancelled while it built fused_adam, and fused_adam/lock stayed.

    Fix: remove the lock file.

    Known limits: another node outside the job may be building on a shared home directory.

    Evidence: pytorch/pytorch#189245, PASSIONLab/OpenEquivariance#207, sgl-project/sglang#35989.
    """
    if not job.launches or not _compiles(job):
        yield not_applicable("extension locks", "the job does not compile extensions, as far as its files tell")
        return
    yield from unseen(facts, locks, "extension locks")
    asked = {seen.node: seen.fact for seen in facts.each(locks)}
    building = [node for node, value in facts.observed(leftovers).items() if value.compiling]
    stale: dict[str, tuple[float, list[str]]] = {}
    for node, fact in asked.items():
        for lock in fact.value if isinstance(fact, Observed) else ():
            if lock.age_s > STALE_LOCK_S:
                age, nodes = stale.get(lock.path, (lock.age_s, []))
                stale[lock.path] = (min(age, lock.age_s), [*nodes, node])
    for path, (age, nodes) in stale.items():
        if building:
            yield unknown(path, f"a compiler runs on {fold(building)}, and may be its owner")
            continue
        yield failed(
            path,
            f"{path} is {_age(age)} old on {fold(nodes)} and no compiler runs: whoever builds or loads that extension "
            "waits for it to go away",
            at=Evidence("extension lock", f"{_age(age)} old", "none", f"ls -l {path}", nodes[0]),
            nodes=nodes,
            remedy=f"Where no build is going on: `ssh {nodes[0]} rm {path}`.",
            run=(command("rm", path, on=nodes),),
        )
    if asked and not stale and not all(isinstance(fact, Unavailable) for fact in asked.values()):
        yield passed(f"extension locks on {len(asked)} nodes")


@check(
    "LFT005",
    "node-shared-with-others",
    plan=_plan,
    probes=(leftovers,),
    cost=_COST,
    severity=Severity.INFO,
    confidence=Confidence.LOW,
    evidence=("pytorch/pytorch#4293", "microsoft/pai#3372"),
)
def node_shared_with_others(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Nobody else computes on the nodes.

    What it checks: Python processes of other users that have kept a processor more than half busy.

    Why it matters: all ranks wait for the slowest, and ports and shared memory are shared too.

    Example: somebody's preprocessing runs on node2.

    Fix: ask for the node alone, or wait.

    Known limits: told in passing, because sharing may be meant.

    Evidence: pytorch/pytorch#4293, microsoft/pai#3372.
    """
    if not job.launches:
        yield not_applicable("other users", "the job starts nothing")
        return
    yield from unseen(facts, leftovers, "other users")
    have = facts.observed(leftovers)
    shared = {node: value for node, value in have.items() if value.strangers}
    if shared:
        node, value = next(iter(shared.items()))
        spoken = fold((f"{count} of {user}" for user, count in sorted(value.strangers.items())), 4)
        yield failed(
            f"others on {fold(shared)}",
            f"busy Python processes of other users run on {fold(shared)} ({node}: {spoken})",
            at=Evidence("processes", spoken, "none", "ps -eo user,pcpu,args --sort=-pcpu", node),
            nodes=tuple(shared),
            remedy=f"Ask for {fold(shared)} alone, or wait.",
        )
    elif have:
        yield passed(f"other users on {len(have)} nodes")
