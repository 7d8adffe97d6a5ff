"""Global and local indices of ranks, by node and role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from preflight.commands.plan.job_plan import RankRow
from preflight.model.job import Claim, Job, Known, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.derive import deepspeed_slots, host_slots
from preflight.model.job.value import items, known_number

#: Nodes that get their own rows; the others, which differ only in their index, share one.
_MAX_NODES = 8
#: At most this many ranks of a host are listed if they are not a range.
_MAX_RANKS = 16


def rank_rows(job: Job, launch: Launch) -> tuple[RankRow, ...]:
    """The ranks of a launch, with nodes that differ only in their index folded into one row."""
    row = _single_process_row(job, launch)
    if row is not None:
        return (row,)
    if job.value("ps_mode", launch.scope) == Known(True):
        return tuple(_of_servers(job, launch))
    return tuple(_of_nodes(job, launch))


def starts_one(job: Job, launch: Launch) -> bool:
    """Whether the launch starts one process of a job whose other processes have separate launches."""
    return _single_process_row(job, launch) is not None


def _single_process_row(job: Job, launch: Launch) -> RankRow | None:
    if launch.launcher != "python":
        return None
    role = job.value("ps_role", launch.scope)
    if isinstance(role, Known) and isinstance(role.value, str):
        index = known_number(job.value("ps_index", launch.scope))
        named = "server" if "server" in role.value.lower() else "trainer"
        listed = "ps_server_endpoints" if named == "server" else "ps_worker_endpoints"
        addresses = _names(job, launch, listed)
        own = job.value("ps_current_endpoint", launch.scope)
        host = str(own.value) if isinstance(own, Known) else ""
        if index is None and host in addresses:
            index = addresses.index(host)
        if index is not None and not host:
            host = _host_at(addresses, index)
        return RankRow(named, "", host, "of unknown index" if index is None else str(index), "")
    if _spawns(job, launch):
        return None
    rank = known_number(job.value("rank", launch.scope))
    world = known_number(job.value("world_size", launch.scope))
    return RankRow("rank", "", "", f"{rank} of {world}", "") if rank is not None and world is not None else None


def _spawns(job: Job, launch: Launch) -> bool:
    """Whether the program is started once and starts all ranks itself."""
    return launch.launcher == "python" and any(
        claim.source == "derived"
        and claim.because
        and claim.because[0].quantity in ("spawned_processes", "ray_workers")
        for claim in job.value_claims("world_size", launch.scope)
    )


def _slurm_decides(job: Job, launch: Launch, nodes: int, world: int) -> bool:
    """Whether only Slurm knows how many tasks each node gets.

    With `--nodes=2 --ntasks=6` the first node may get as many as it has cores, unless nodes are exclusive.
    """
    claims = job.value_claims("tasks_per_node", launch.scope)
    return (
        launch.launcher == "srun"
        and world != nodes
        and bool(claims)
        and all(any(one.quantity == "tasks" for one in claim.because) for claim in claims)
    )


def starts_here(job: Job, launch: Launch) -> bool:
    """Whether the number of nodes is not stated, and the launcher starts the ranks on its own machine."""
    return job.value("starts_here", launch.scope) == Known(True) and not node_claims(job, launch)


def node_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims about the number of nodes that a launch expects: its own first, then the scheduler's."""
    own = tuple(claim for claim in job.requiring("nodes", launch.scope) if claim.scope.launch == launch.id)
    return own or job.value_claims("nodes", launch.scope)


def _names(job: Job, launch: Launch, quantity: str) -> tuple[str, ...]:
    return items(job.value(quantity, launch.scope))


def _of_servers(job: Job, launch: Launch) -> Iterator[RankRow]:
    for role, count_of, listed in (
        ("server", "ps_servers", "ps_server_endpoints"),
        ("trainer", "ps_workers", "ps_worker_endpoints"),
    ):
        addresses = _names(job, launch, listed)
        if addresses:
            for index, address in enumerate(addresses):
                yield RankRow(role, "", address, str(index), "")
            continue
        count = known_number(job.value(count_of, launch.scope))
        if count:
            yield RankRow(role, "", "", span(0, count), "")


def _of_nodes(job: Job, launch: Launch) -> Iterator[RankRow]:
    hosts = _names(job, launch, "hosts")
    slots = _slots(job, launch, hosts)
    each = known_number(job.value("processes_per_node", launch.scope))
    nodes = known_number(job_value(node_claims(job, launch)))
    if starts_here(job, launch):
        nodes = 1
    world = known_number(job.value("world_size", launch.scope))
    tasks = known_number(job.value("tasks", launch.scope)) if launch.launcher in ("mpirun", "horovodrun") else None
    if job.value("controller", launch.scope) == Known("gloo"):
        # Gloo starts a rank on every slot, whatever `-np` says.
        tasks = None
    chosen = deepspeed_slots(job, launch)
    if chosen:
        yield from _of_deepspeed(chosen)
    elif slots and _is_cyclic(job, launch) and (tasks or sum(slots)) <= sum(slots):
        yield from _fill_in_turn(job, launch, hosts, slots, tasks or sum(slots))
    elif slots and tasks is not None:
        yield from _rows_of_hosts(job, launch, hosts, _distribute(slots, tasks))
    elif slots and (each is None or world == sum(slots)):
        yield from _rows_of_hosts(job, launch, hosts, slots)
    elif world and _spawns(job, launch):
        if job.value_claims("ray_workers", launch.scope):
            # Ray decides on which node each rank runs.
            yield RankRow("rank", "", "", span(0, world), "")
        else:
            yield RankRow("rank", "0", "", span(0, world), span(0, world), _devices(job, launch, world))
    elif world and nodes is not None and nodes > 1 and _slurm_decides(job, launch, nodes, world):
        yield RankRow("rank", "", "", span(0, world), "")
    elif each is not None and nodes is not None and each > 0 and nodes > 0:
        if world is not None and world != each * nodes:
            # Too few ranks for all nodes: the launcher decides how they are placed.
            yield RankRow("rank", "", "", span(0, world), "")
        elif _is_cyclic(job, launch) and nodes > 1:
            for node in range(min(nodes, _MAX_NODES)):
                shown = f"{node}, {node + nodes}, ..." if each > 1 else str(node)
                yield RankRow(
                    "rank", str(node), _host_at(hosts, node), shown, span(0, each), _devices(job, launch, each)
                )
        else:
            yield from _rows_of_hosts(job, launch, hosts, [each] * nodes)
    elif each is not None and each > 0:
        first, last = ("i", "i") if each == 1 else (f"{each}i", f"{each}i+{each - 1}")
        ranks = first if each == 1 else f"{first} to {last}"
        yield RankRow("rank", "i", "", ranks, span(0, each), _devices(job, launch, each))
    elif world is not None and world > 0:
        yield RankRow("rank", "", "", span(0, world), "")


def _of_deepspeed(slots: Mapping[str, Sequence[int]]) -> Iterator[RankRow]:
    """The ranks on the hosts of DeepSpeed's hostfile; each rank sees the slots that are used on its host."""
    hosts = list(slots)
    node = start = 0
    for own, same in groupby(slots.values()):
        nodes = len(list(same))
        # deepspeed/launcher/launch.py takes the global rank modulo the processes of the node.
        local = [(start + number) % len(own) for number in range(len(own))]
        shown = span(0, len(own)) if local[0] == 0 else ", ".join(map(str, local))
        used = [own[number] for number in local]
        straight = used == list(range(used[0], used[0] + len(used)))
        devices = f"GPU {span(used[0], len(used)) if straight else ','.join(map(str, used))}"
        if len(slots) > _MAX_NODES and nodes > 1:
            name, ranks = _host_range(hosts, node, nodes), span(start, nodes * len(own))
            yield RankRow("rank", span(node, nodes), name, ranks, f"{shown} on each", devices)
            node, start = node + nodes, start + nodes * len(own)
            continue
        for _ in range(nodes):
            yield RankRow("rank", str(node), hosts[node], span(start, len(own)), shown, devices)
            node, start = node + 1, start + len(own)


def _rows_of_hosts(job: Job, launch: Launch, hosts: Sequence[str], slots: Sequence[int]) -> Iterator[RankRow]:
    starts = [sum(slots[:node]) for node in range(len(slots))] if len(slots) <= _MAX_NODES else []
    if starts:
        for node, (start, each) in enumerate(zip(starts, slots, strict=True)):
            devices = _devices(job, launch, each)
            yield RankRow("rank", str(node), _host_at(hosts, node), span(start, each), span(0, each), devices)
        return
    node = start = 0
    for each, same in groupby(slots):
        nodes = len(list(same))
        host = _host_at(hosts, node) if nodes == 1 else _host_range(hosts, node, nodes)
        devices = _devices(job, launch, each)
        yield RankRow("rank", span(node, nodes), host, span(start, nodes * each), f"{span(0, each)} on each", devices)
        node, start = node + nodes, start + nodes * each


def _fill_in_turn(
    job: Job, launch: Launch, hosts: Sequence[str], slots: Sequence[int], tasks: int
) -> Iterator[RankRow]:
    """The ranks of hosts that are filled in turn, one rank at a time, as long as they have slots."""
    ranks: list[list[int]] = [[] for _ in slots]
    given = 0
    while given < tasks:
        for own, room in zip(ranks, slots, strict=True):
            if len(own) < room and given < tasks:
                own.append(given)
                given += 1
    for node, own in enumerate(ranks):
        if own and node < _MAX_NODES:
            shown = ", ".join(map(str, own[:_MAX_RANKS])) + (", ..." if len(own) > _MAX_RANKS else "")
            yield RankRow(
                "rank", str(node), _host_at(hosts, node), shown, span(0, len(own)), _devices(job, launch, len(own))
            )


def _distribute(slots: Sequence[int], tasks: int) -> list[int]:
    """Distribute tasks over hosts with these slots, filling the first host first; any surplus goes to the last one."""
    found = []
    for number, room in enumerate(slots):
        here = tasks if number == len(slots) - 1 else min(room, tasks)
        found.append(here)
        tasks -= here
    return [here for here in found if here > 0]


def _slots(job: Job, launch: Launch, hosts: Sequence[str]) -> list[int]:
    """The ranks on each host, if a hostfile gives each of them its own count."""
    by_host = host_slots(job, launch)
    return [by_host[host] for host in hosts] if by_host else []


def _is_cyclic(job: Job, launch: Launch) -> bool:
    mapping = job.value("mpi_mapping", launch.scope)
    return isinstance(mapping, Known) and isinstance(mapping.value, str) and mapping.value.split(":")[0] == "node"


def _devices(job: Job, launch: Launch, each: int) -> str:
    selected = _names(job, launch, "selected_devices")
    if len(selected) >= each:
        return f"GPU {','.join(selected[:each])}"
    visible = job.value("env.CUDA_VISIBLE_DEVICES", launch.scope)
    if isinstance(visible, Known) and isinstance(visible.value, str) and visible.value.strip():
        listed = [part.strip() for part in visible.value.split(",")]
        return f"GPU {','.join(listed[:each])}" if len(listed) >= each else f"GPU {visible.value}, fewer than ranks"
    for quantity in ("gpus_per_node", "pod_gpus", "gpus_per_task"):
        gpus = known_number(job.value(quantity, launch.scope))
        if gpus:
            shared = " shared" if quantity != "gpus_per_task" and gpus < each else ""
            return f"GPU {span(0, min(gpus, each) if quantity != 'gpus_per_task' else gpus * each)}{shared}"
    return ""


def _host_at(hosts: Sequence[str], node: int) -> str:
    return hosts[node] if node < len(hosts) else ""


def _host_range(hosts: Sequence[str], node: int, nodes: int) -> str:
    return f"{hosts[node]} to {hosts[node + nodes - 1]}" if node + nodes <= len(hosts) else ""


def span(start: int, count: int) -> str:
    """Format a range, such as `0-7`, or `3` for a single index."""
    return str(start) if count == 1 else f"{start}-{start + count - 1}"
