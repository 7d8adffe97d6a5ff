"""Checks that a node has the memory that the job needs, and that it may use and lock it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_high

from preflight.analysis.model_size import model_parameters, uses_less_memory
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.comparison import GIB, MIB, known, processes_of_node, size, workers_of_rank, world_of
from preflight_checks.host.machines import plan_machines
from preflight_checks.plans import combined, has_launches, known_facts, missing_facts, on_every_node, several_nodes
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import NumaNode, machine
from preflight_checks.rdma.devices import demand_claims
from preflight_checks.requirements import backends, fold, known_text, nodes_share_machine, scopes

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
    """The number of processes on one node that share memory (ranks and loader workers); 0 for a single rank."""
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
    cost="reads limits and the size of /dev/shm in the job context; milliseconds",
    severity=Severity.ERROR,
)
def shm_too_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Shared memory is larger than a container's default where several processes share a node.

    What it checks: size and free space of /dev/shm as a rank sees it.

    Why it matters: NCCL's shared-memory transport and DataLoader workers die with a bus error or "unhandled system
    error" minutes into the run.

    Example: eight ranks in a container with 64 MiB of /dev/shm.

    Fix: `--shm-size` or `--ipc=host` for Docker; a memory-backed emptyDir at /dev/shm in Kubernetes.

    Known limits: the size that is needed depends on the batch; free space is that of this moment.
    """
    users, claims = _shm_users(job)
    if not users:
        yield not_applicable("shared memory", "no node is known to have processes that share memory")
        return
    observed = yield from known_facts(facts, limits, "shared memory")
    tiny = {node: v for node, v in observed.items() if known(v.shm_total_bytes) <= CONTAINER_DEFAULT_SHM}
    full = {
        node: v
        for node, v in observed.items()
        if node not in tiny and known(v.shm_free_bytes) < users * SHM_PER_PROCESS
    }
    blind = {node: v for node, v in observed.items() if v.shm_total_bytes is None}
    for problem in dict.fromkeys(value.shm_problem for value in blind.values()):
        nodes = [node for node, value in blind.items() if value.shm_problem == problem]
        yield unknown(f"shared memory on {fold(nodes)}", f"/dev/shm cannot be read: {problem}")
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
            f"/dev/shm has {size(value.shm_free_bytes)} free on {fold(full)}, less than "
            f"{size(SHM_PER_PROCESS)} for each of the {users} processes that share it",
            at=_shm_evidence(node, value),
            also=claims,
            nodes=tuple(full),
            remedy=f"Remove leftovers of earlier runs from /dev/shm on {fold(full)}, or enlarge it.",
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
    plan=on_every_node(limits, when=several_nodes, needed_by=demand_claims, context=True),
    cost="reads limits and the list of RDMA devices in the job context; milliseconds",
    severity=Severity.ERROR,
)
def memlock_limited(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Ranks may lock enough memory for RDMA.

    What it checks: the locked-memory limit inside the job context, on nodes that have RDMA devices.

    Why it matters: registering buffers fails with "Cannot allocate memory", far from the cause; daemons often give
    a lower limit than a login shell shows.

    Example: `ulimit -l` prints unlimited after ssh, but ranks started by slurmd get 64 KiB.

    Fix: LimitMEMLOCK=infinity for the daemon that starts ranks; `--ulimit memlock=-1` for containers.

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
                certain=hard,
            )


def _plan_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    world, claims = world_of(job, fleet)
    if world > 1:
        for node in fleet.reached:
            yield Request(probe_name(limits), node.name, context=True, because=claims)


@check(
    "LIM003",
    "open-files-limit",
    plan=_plan_files,
    probes=(limits,),
    cost="reads limits in the job context; milliseconds",
    severity=Severity.ERROR,
)
def open_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A rank may open enough files for its connections.

    What it checks: the soft limit of open files inside the job context against an estimate: 256 for
    Python and data, and four for every rank of the world (store, Gloo's full mesh, NCCL's rings).

    Why it matters: a job works on one node and fails on four, with "Too many open files" in a library.

    Example: a limit of 1024 and 256 ranks.

    Fix: raise the limit for the daemon that starts ranks, or `ulimit -n 65536` in the job script.

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
    below: Callable[[Limits, float], bool] = lambda value, bound: known(value.open_files_soft) < bound  # noqa: E731
    short = {node: value for node, value in observed.items() if below(value, needed)}
    if observed and not short:
        yield passed(f"open files on {len(observed)} nodes")
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
            certain=hard,
        )


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
