"""Whether the limits that ranks inherit are high enough for the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import backends, fold, unseen
from preflight_checks.per_node import GIB, MIB, known, processes_of_node, size, workers_of_rank, world_of
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.rdma.rdma_use import demand

#: What Docker, containerd and Kubernetes give a container when nothing is said.
CONTAINER_DEFAULT_SHM = 64 * MIB
#: Under this per rank or loader worker, shared-memory transports and workers have run out in practice
#: (NVIDIA/nccl#290: the container default was short with more than one GPU).
SHM_EACH = 64 * MIB
#: RDMA queues and buffers of one rank do not fit below; AWS's suite warns under 16 GiB, Primus fails under 32 GiB.
MEMLOCK_FLOOR, MEMLOCK_COMFORT = GIB, 32 * GIB
#: Files a Python process with torch holds open before any connection, with room for data files.
FILES_BASE = 256


def _request(node: str, claims: tuple[Claim, ...]) -> Request:
    return Request(probe_name(limits), node, context=True, because=claims)


def _shm_users(job: Job) -> tuple[int, tuple[Claim, ...]]:
    """Processes of one node that share memory: ranks with their loader workers; 0 for a lone rank."""
    users, claims = processes_of_node(job)
    # Gloo talks over sockets alone; what else a back end does with shared memory is not known.
    sockets_only = backends(job)[0] == {"gloo"} and not workers_of_rank(job)[0]
    return (users if users > 1 and not sockets_only else 0), claims


def _plan_shm(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    users, claims = _shm_users(job)
    if users:
        for node in fleet.reached:
            yield _request(node.name, claims)


@check(
    "LIM001",
    "shm-too-small",
    plan=_plan_shm,
    probes=(limits,),
    cost="reads limits and the size of /dev/shm in the job context; milliseconds",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#342", "NVIDIA/nccl#290", "NVIDIA/nccl#525"),
)
def shm_too_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Shared memory is larger than a container's default where several processes share a node.

    What it checks: size and free space of /dev/shm as a rank sees it.

    Why it matters: NCCL's shared-memory transport and DataLoader workers die with a bus error or "unhandled system
    error" minutes into the run.

    Example: eight ranks in a container with 64 MiB of /dev/shm.

    Fix: `--shm-size` or `--ipc=host` for Docker; a memory-backed emptyDir at /dev/shm in Kubernetes.

    Known limits: how much is needed depends on the batch; free space is that of the moment.

    Evidence: NVIDIA/nccl#342, NVIDIA/nccl#290, NVIDIA/nccl#525.
    """
    users, claims = _shm_users(job)
    if not users:
        yield not_applicable("shared memory", "no processes of one node are known to share memory")
        return
    have = facts.observed(limits)
    yield from unseen(facts, limits, "shared memory")
    tiny = {node: v for node, v in have.items() if known(v.shm_total_bytes) <= CONTAINER_DEFAULT_SHM}
    full = {node: v for node, v in have.items() if node not in tiny and known(v.shm_free_bytes) < users * SHM_EACH}
    blind = {node: v for node, v in have.items() if v.shm_total_bytes is None}
    for problem in dict.fromkeys(value.shm_problem for value in blind.values()):
        nodes = [node for node, value in blind.items() if value.shm_problem == problem]
        yield unknown(f"shared memory on {fold(nodes)}", f"/dev/shm cannot be looked at: {problem}")
    if tiny:
        node, value = next(iter(tiny.items()))
        yield failed(
            "shared memory: size",
            f"/dev/shm has only {size(value.shm_total_bytes)} on {fold(tiny)}, and {users} processes of the job "
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
            f"/dev/shm has {size(value.shm_free_bytes)} free on {fold(full)}, less than {size(SHM_EACH)} for each "
            f"of the {users} processes that share it",
            at=_shm_evidence(node, value),
            also=claims,
            nodes=tuple(full),
            remedy=f"Remove what earlier runs left in /dev/shm on {fold(full)}, or enlarge it.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    if len(have) > len(blind) and not tiny and not full:
        yield passed(f"shared memory on {len(have) - len(blind)} nodes")


def _shm_evidence(node: str, value: Limits) -> Evidence:
    seen = f"{size(value.shm_total_bytes)}, {size(value.shm_free_bytes)} free"
    return Evidence("/dev/shm", seen, f"more than {size(CONTAINER_DEFAULT_SHM)}", "df -h /dev/shm", node)


def _rdma_claims(job: Job) -> tuple[Claim, ...]:
    """The claims that make RDMA likely, where devices exist; empty when the job cannot use it."""
    wanted = demand(job)
    return wanted.claims if wanted is not None else ()


def _plan_memlock(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    claims = _rdma_claims(job)
    if claims and len(fleet.nodes) > 1:
        for node in fleet.reached:
            yield _request(node.name, claims)


@check(
    "LIM002",
    "memlock-limited",
    plan=_plan_memlock,
    probes=(limits,),
    cost="reads limits and the list of RDMA devices in the job context; milliseconds",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl-tests#206", "openucx/ucx#8229", "openucx/ucx#8684"),
)
def memlock_limited(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Ranks may lock enough memory for RDMA.

    What it checks: the locked-memory limit inside the job context, on nodes that have RDMA devices.

    Why it matters: registering buffers fails with "Cannot allocate memory", far from the cause; daemons often give
    a lower limit than a login shell shows.

    Example: `ulimit -l` prints unlimited after ssh, but ranks started by slurmd get 64 KiB.

    Fix: LimitMEMLOCK=infinity for the daemon that starts ranks; `--ulimit memlock=-1` for containers.

    Known limits: only asked when the job says nccl and does not disable InfiniBand, or asks UCX for RDMA.

    Evidence: NVIDIA/nccl-tests#206, openucx/ucx#8229, openucx/ucx#8684.
    """
    claims = _rdma_claims(job)
    have = facts.observed(limits)
    blind = tuple(unseen(facts, limits, "locked memory"))
    with_rdma = {node: value for node, value in have.items() if value.rdma_devices}
    if not claims or len(fleet.nodes) < 2 or (have and not with_rdma and not blind):
        yield not_applicable("locked memory", "the job does not use RDMA, or no node has RDMA devices")
        return
    yield from blind
    low = {n: v for n, v in with_rdma.items() if known(v.locked_memory_soft_bytes) < MEMLOCK_COMFORT}
    if with_rdma and not low:
        yield passed(f"locked memory on {len(with_rdma)} nodes")
    for hard in (True, False):
        group = {n: v for n, v in low.items() if (known(v.locked_memory_soft_bytes) < MEMLOCK_FLOOR) is hard}
        if group:
            node, value = next(iter(group.items()))
            limit = size(value.locked_memory_soft_bytes)
            yield failed(
                f"locked memory: {'floor' if hard else 'budget'}",
                f"a rank on {fold(group)} may lock {limit} of memory, and {fold(value.rdma_devices, 2)} need it to "
                "register buffers",
                at=Evidence("locked-memory limit", limit, "unlimited", "ulimit -l", node),
                also=claims,
                nodes=tuple(group),
                remedy="Set LimitMEMLOCK=infinity for the daemon that starts ranks (slurmd, sshd, containerd), or "
                "--ulimit memlock=-1 for the container.",
                severity=None if hard else Severity.WARNING,
                confidence=None if hard else Confidence.MEDIUM,
            )


def _plan_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    world, claims = world_of(job, fleet)
    if world > 1:
        for node in fleet.reached:
            yield _request(node.name, claims)


@check(
    "LIM003",
    "open-files-limit",
    plan=_plan_files,
    probes=(limits,),
    cost="reads limits in the job context; milliseconds",
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#550", "goodfire-ai/spd#957"),
)
def open_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A rank may open enough files for its connections.

    What it checks: the soft limit of open files inside the job context against an estimate: 256 for
    Python and data, and four for every rank of the world (store, Gloo's full mesh, NCCL's rings).

    Why it matters: with one node a job works and with four it dies, of "Too many open files" in a library.

    Example: a limit of 1024 and 256 ranks.

    Fix: raise the limit for the daemon that starts ranks, or `ulimit -n 65536` in the job script.

    Known limits: an estimate; below the number of ranks it is an error, otherwise a warning.

    Evidence: NVIDIA/nccl#550, goodfire-ai/spd#957.
    """
    world, claims = world_of(job, fleet)
    if world < 2:
        yield not_applicable("open files", "the job has one rank")
        return
    have = facts.observed(limits)
    yield from unseen(facts, limits, "open files")
    needed = FILES_BASE + 4 * world
    # One connection for each other rank, and what any Python process holds, is beyond doubt.
    certain = world + 32
    below: Callable[[Limits, float], bool] = lambda value, bound: known(value.open_files_soft) < bound  # noqa: E731
    short = {node: value for node, value in have.items() if below(value, needed)}
    if have and not short:
        yield passed(f"open files on {len(have)} nodes")
    for hard in (True, False):
        group = {node: value for node, value in short.items() if below(value, certain) is hard}
        if not group:
            continue
        node, value = next(iter(group.items()))
        room = min([65536, *(v.open_files_hard for v in group.values() if v.open_files_hard is not None)])
        roof = "unlimited" if value.open_files_hard is None else str(value.open_files_hard)
        yield failed(
            f"open files: {'certain' if hard else 'estimate'}",
            f"a rank on {fold(group)} may open {value.open_files_soft} files; {world} ranks need about {needed}",
            at=Evidence("open-files limit", f"{value.open_files_soft} (hard {roof})", f"{needed}", "ulimit -n", node),
            also=claims,
            nodes=tuple(group),
            remedy="`ulimit -n 65536` in the job script (up to the hard limit), or LimitNOFILE for the daemon that "
            "starts ranks.",
            run=(command("ulimit", "-n", str(room)),),
            severity=None if hard else Severity.WARNING,
            confidence=None if hard else Confidence.MEDIUM,
        )
