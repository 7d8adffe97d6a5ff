"""Builds the plan of each job from the claims of its files, with the indices of ranks by node and role."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from preflight import __version__
from preflight._util import toml
from preflight._util.redaction import redact
from preflight.analysis.model_size import device_memory, is_megatron
from preflight.commands.plan.job_plan import (
    Axis,
    Batch,
    Endpoint,
    Grid,
    JobPlan,
    LaunchPlan,
    MemoryPart,
    OpenQuantity,
    OverriddenValue,
    Place,
    Plan,
    RankRow,
    ResourceRequest,
    Setting,
)
from preflight.model.job import UNSEEN, Claim, Job, Known, Launch, OneOf, Relation, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.derive import deepspeed_slots, host_slots
from preflight.model.job.value import QUANTITIES, Value, items, known_number

#: Number of nodes with rows of their own; the others, which differ only in their index, share one row.
_MAX_NODES = 8
#: Largest number of a host's ranks that are listed if they are not a range.
_MAX_RANKS = 16


def rank_rows(job: Job, launch: Launch) -> tuple[RankRow, ...]:
    """Return the ranks of a launch, with nodes that differ only in their index folded into one row."""
    row = _single_process_row(job, launch)
    if row is not None:
        return (row,)
    if job.value("ps_mode", launch.scope) == Known(True):
        return tuple(_server_rows(job, launch))
    return tuple(_node_rows(job, launch))


def starts_one(job: Job, launch: Launch) -> bool:
    """Return whether the launch starts one process of a job whose other processes have separate launches."""
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
    if _spawns_all_ranks(job, launch):
        return None
    rank = known_number(job.value("rank", launch.scope))
    world = known_number(job.value("world_size", launch.scope))
    return RankRow("rank", "", "", f"{rank} of {world}", "") if rank is not None and world is not None else None


def _spawns_all_ranks(job: Job, launch: Launch) -> bool:
    """Return whether the program is started once and starts all ranks itself."""
    return launch.launcher == "python" and any(
        claim.source == "derived"
        and claim.because
        and claim.because[0].quantity in ("spawned_processes", "ray_workers")
        for claim in job.value_claims("world_size", launch.scope)
    )


def _slurm_decides(job: Job, launch: Launch, nodes: int, world: int) -> bool:
    """Return whether only Slurm knows each node's tasks, as with `--nodes=2 --ntasks=6` on shared nodes."""
    claims = job.value_claims("tasks_per_node", launch.scope)
    return (
        launch.launcher == "srun"
        and world != nodes
        and bool(claims)
        and all(any(one.quantity == "tasks" for one in claim.because) for claim in claims)
    )


def starts_here(job: Job, launch: Launch) -> bool:
    """Return whether the number of nodes is not given and the launcher starts the ranks on its own machine."""
    return job.value("starts_here", launch.scope) == Known(True) and not node_claims(job, launch)


def node_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims about the expected number of nodes: first those of the launch, then those of the scheduler."""
    own = tuple(claim for claim in job.requirement_claims("nodes", launch.scope) if claim.scope.launch == launch.id)
    return own or job.value_claims("nodes", launch.scope)


def _names(job: Job, launch: Launch, quantity: str) -> tuple[str, ...]:
    return items(job.value(quantity, launch.scope))


def _server_rows(job: Job, launch: Launch) -> Iterator[RankRow]:
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


def _node_rows(job: Job, launch: Launch) -> Iterator[RankRow]:
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
        yield from _deepspeed_rows(chosen)
    elif slots and _is_cyclic(job, launch) and (tasks or sum(slots)) <= sum(slots):
        yield from _rows_in_turn(job, launch, hosts, slots, tasks or sum(slots))
    elif slots and tasks is not None:
        yield from _rows_of_hosts(job, launch, hosts, _distribute(slots, tasks))
    elif slots and (each is None or world == sum(slots)):
        yield from _rows_of_hosts(job, launch, hosts, slots)
    elif world and _spawns_all_ranks(job, launch):
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


def _deepspeed_rows(slots: Mapping[str, Sequence[int]]) -> Iterator[RankRow]:
    """Yield the ranks on the hosts of DeepSpeed's hostfile; each rank sees the slots in use on its host."""
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


def _rows_in_turn(
    job: Job, launch: Launch, hosts: Sequence[str], slots: Sequence[int], tasks: int
) -> Iterator[RankRow]:
    """Yield the ranks of hosts that are filled in turn, one rank at a time, as long as slots are free."""
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
    """Return the number of ranks on each host, if a hostfile gives a count for each host."""
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


_SHOWN = toml.with_tuples(toml.beside(__file__, "quantities.toml"))
_INTERFACES = frozenset(_SHOWN["interfaces"])
_PATHS = _SHOWN["paths"]
#: Quantities that the plan shows elsewhere, or that describe the program's source and not the ranks.
_NOT_SETTINGS = frozenset((*_PATHS, *_SHOWN["not_settings"]))
#: Quantities that are listed as open if the files do not determine them.
_DECISIVE = _SHOWN["decisive"]
#: A larger grid is not drawn: it would be unreadable, and a file may claim any number of stages.
_MAX_REPLICAS, _MAX_STAGES = 16, 128
_ELASTIC = ("torchrun", "torch.distributed.launch", "accelerate")


def plan_of(
    jobs: Sequence[Job],
    *,
    given_values: Mapping[str, str] | None = None,
    assumed: Mapping[str, str] | None = None,
    price_per_gpu_hour: float | None = None,
) -> Plan:
    """Return the plan of these jobs, with the user's variables `given` and the defaults `assumed` for others."""
    job_plans = tuple(_job_plan(job, price_per_gpu_hour) for job in jobs if job.launches or job.files or job.notes)
    return Plan(__version__, job_plans, _assignments(given_values or {}), _assignments(assumed or {}))


def _assignments(variables: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={redact(name, value)}" for name, value in sorted(variables.items()))


def _job_plan(job: Job, price: float | None) -> JobPlan:
    unread = [note.message.partition("\n")[0] for note in job.notes if note.required or note.kind in UNSEEN]
    return JobPlan(
        job.name,
        tuple(file.path for file in job.files),
        tuple(_launch_plan(job, launch) for launch in job.launches),
        _request(job, price),
        tuple(dict.fromkeys(unread)),
        incomplete=any(note.required for note in job.notes),
    )


def _launch_plan(job: Job, launch: Launch) -> LaunchPlan:
    scope = launch.scope
    variables = tuple(_settings(job, launch, lambda name: name.startswith("env.")))
    return LaunchPlan(
        id=launch.id,
        launcher=launch.launcher,
        program=launch.program,
        place=Place(launch.span.path, launch.span.line),
        started_at=tuple(Place(one.path, one.line) for one in launch.started_at),
        inside=tuple(posixpath.basename(wrapper.split()[0]) for wrapper in launch.wrappers if wrapper.split()),
        condition=launch.condition,
        concurrent=launch.concurrent,
        starts_one=starts_one(job, launch),
        nodes=setting_of(job, launch, "nodes"),
        processes_per_node=setting_of(job, launch, "processes_per_node"),
        world_size=setting_of(job, launch, "world_size"),
        ranks=rank_rows(job, launch),
        rank_arguments=_rank_arguments(job, launch),
        kept_variables=kept_variables(job, launch, [one.name for one in variables]),
        arguments=launch.arguments,
        variables=tuple(one for one in variables if one.name not in _INTERFACES),
        settings=tuple(
            _settings(job, launch, lambda name: name not in _NOT_SETTINGS and not name.startswith(("env.", "step_")))
        ),
        grid=_grid(job, launch),
        batch=_batch(job, launch),
        memory=tuple(MemoryPart(part.name, part.size_bytes, part.formula) for part in device_memory(job, launch)),
        endpoints=tuple(_endpoints(job, launch)),
        interfaces=tuple(one for one in variables if one.name in _INTERFACES),
        paths=tuple(found for name in _PATHS if (found := setting_of(job, launch, name)) is not None),
        servers=_servers(job, launch),
        open=tuple(_open_quantities([claim for name in _DECISIVE for claim in job.value_claims(name, scope)])),
    )


def _rank_arguments(job: Job, launch: Launch) -> tuple[str, ...]:
    """Return the arguments that a launcher inserts before the program's own, different for each rank."""
    value = job.value("rank_argument", launch.scope)
    return (str(value.value),) if isinstance(value, Known) else ()


def format_value(value: Value) -> str:
    """Format a value."""
    if isinstance(value, Unresolved):
        return f"unknown: {value.why}"
    if isinstance(value, OneOf):
        return " or ".join(dict.fromkeys(_text(one) for one in value.values))
    return _text(value.value)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def setting_of(job: Job, launch: Launch, quantity: str) -> Setting | None:
    """Return the value of a quantity for a launch; None if the files do not give it."""
    chosen = node_claims(job, launch) if quantity == "nodes" else job.value_claims(quantity, launch.scope)
    if not chosen and quantity in ("nodes", "world_size") and starts_here(job, launch):
        return _single_node_setting(job, launch, quantity)
    if not chosen:
        return None
    value = job_value(chosen)
    others = [
        OverriddenValue(claim.spelling, _place(claim))
        for claim in job.about(quantity, launch.scope)
        if claim not in chosen and claim.relation is Relation.SETS and claim.value != value
    ]
    known = QUANTITIES.get(quantity)
    return Setting(
        quantity.removeprefix("env."),
        format_value(value),
        isinstance(value, Known),
        chosen[0].spelling,
        _place(chosen[0]),
        tuple(dict.fromkeys(others)),
        known.unit if known is not None else "",
    )


def _single_node_setting(job: Job, launch: Launch, quantity: str) -> Setting | None:
    """Return the number of nodes, or of ranks, of a launch that starts all of its ranks on its own machine."""
    chosen = job.value_claims("starts_here" if quantity == "nodes" else "processes_per_node", launch.scope)
    if not chosen:
        return None
    value: Value = Known(1) if quantity == "nodes" else job_value(chosen)
    return Setting(quantity, format_value(value), isinstance(value, Known), chosen[0].spelling, _place(chosen[0]))


def _settings(job: Job, launch: Launch, is_wanted: Callable[[str], bool]) -> Iterator[Setting]:
    for name in sorted({claim.quantity for claim in job.claims if is_wanted(claim.quantity)}):
        found = setting_of(job, launch, name)
        if found is not None:
            yield found


def _place(claim: Claim) -> Place:
    return Place(claim.span.path, claim.span.line)


def _numbers(job: Job, launch: Launch, quantity: str) -> tuple[int | None, Place | None]:
    claims = job.value_claims(quantity, launch.scope)
    return (known_number(job_value(claims)), _place(claims[0])) if claims else (None, None)


def _grid(job: Job, launch: Launch) -> Grid | None:
    axes = []
    parts = 1
    for name, quantity in (
        ("PP", "pipeline_parallel_size"),
        ("CP", "context_parallel_size"),
        ("TP", "tensor_parallel_size"),
    ):
        size, place = _numbers(job, launch, quantity)
        if place is not None and size is None:
            return None
        if size is not None and size > 1:
            axes.append(Axis(name, size, place))
            parts *= size
    world, _ = _numbers(job, launch, "world_size")
    if world is None or world < 2 or world % parts:
        return None
    if not axes and not (job.setting("uses_ddp", launch.scope) or job.setting("uses_fsdp", launch.scope)):
        return None
    replicas = world // parts
    axes.insert(0, Axis("DP", replicas))
    equation = f"{' x '.join(f'{axis.size} {axis.name}' for axis in axes)} = {world} ranks"
    experts, place = _numbers(job, launch, "expert_parallel_size")
    if experts is not None and experts > 1:
        axes.append(Axis("EP", experts, place))
    cells = _cells(axes, replicas) if is_megatron(launch) and replicas <= _MAX_REPLICAS else ()
    return Grid(tuple(axes), equation, cells)


def _cells(axes: Sequence[Axis], replicas: int) -> tuple[tuple[str, ...], ...]:
    """Return the ranks of each pipeline stage and replica, in Megatron-LM's order: tensor, context, data, pipeline."""
    sizes = {axis.name: axis.size for axis in axes}
    if sizes.get("PP", 1) > _MAX_STAGES:
        return ()
    together = sizes.get("TP", 1) * sizes.get("CP", 1)
    return tuple(
        tuple(span((stage * replicas + replica) * together, together) for replica in range(replicas))
        for stage in range(sizes.get("PP", 1))
    )


def _batch(job: Job, launch: Launch) -> Batch | None:
    whole, whole_at = _numbers(job, launch, "train_batch_size")
    micro, micro_at = _numbers(job, launch, "micro_batch_size_per_gpu")
    steps, steps_at = _numbers(job, launch, "gradient_accumulation_steps")
    if micro_at is None:
        micro, micro_at = _numbers(job, launch, "dataloader_batch_size")
    if whole_at is None and micro_at is None:
        return None
    replicas = known_number(job.value("data_parallel_size", launch.scope))
    if replicas is None and not job.setting("tensor_parallel_size", launch.scope):
        replicas = known_number(job.value("world_size", launch.scope))
    holds = None
    if steps is None and steps_at is None:
        each = (micro or 0) * (replicas or 0)
        if whole is not None and each:
            holds = whole % each == 0
            steps = whole // each if holds else None
        elif whole_at is None:
            steps = 1
    elif None not in (whole, micro, steps, replicas):
        holds = whole == (micro or 0) * (steps or 0) * (replicas or 0)
    if whole_at is None and micro is not None and steps is not None and replicas is not None:
        whole, holds = micro * steps * replicas, True
    numbers = ((micro, "micro batch"), (steps, "accumulation"), (replicas, "data-parallel ranks"))
    right = " x ".join(f"{'?' if number is None else number} {name}" for number, name in numbers)
    sign = "are not" if holds is False else "="
    equation = f"{'?' if whole is None else whole} samples {sign} {right}"
    if holds is False and steps is None:
        each = (micro or 0) * (replicas or 0)
        equation = (
            f"{whole} samples are not a multiple of {micro} micro batch x {replicas} data-parallel ranks = {each}"
        )
    return Batch(equation, holds, tuple(dict.fromkeys(place for place in (whole_at, micro_at, steps_at) if place)))


def _endpoints(job: Job, launch: Launch) -> Iterator[Endpoint]:
    scope = launch.scope
    rendezvous = job.value_claims("rendezvous_endpoint", scope)
    backend = job.value("rendezvous_backend", scope)
    if rendezvous:
        yield Endpoint(
            f"rendezvous ({_text(backend.value)})" if isinstance(backend, Known) else "rendezvous",
            _address(job_value(rendezvous), job.value("master_port", scope)),
            "the launcher on every node",
            _place(rendezvous[0]),
        )
    address = job.value_claims("master_addr", scope)
    port = job.value_claims("master_port", scope)
    if (address or port) and not rendezvous:
        first = (address or port)[0]
        host = format_value(job_value(address)) if address else "the first node"
        number = format_value(job_value(port)) if port else "the launcher's default port"
        agents = launch.launcher in _ELASTIC
        who = "the launcher on every node, and every rank" if agents else "every rank"
        yield Endpoint("rank 0's store", f"{host}:{number}", who, _place(first))
    for quantity, purpose, who in (
        ("ps_server_endpoints", "parameter server", "every trainer"),
        ("ps_worker_endpoints", "trainer", "the other trainers, for rendezvous"),
    ):
        for claim in job.value_claims(quantity, scope)[:1]:
            names = claim.value.value if isinstance(claim.value, Known) else format_value(claim.value)
            for one in names if isinstance(names, tuple) else (names,):
                yield Endpoint(purpose, str(one), who, _place(claim))


def _address(value: Value, port: Value) -> str:
    """Return an endpoint as written; if the host is unknown, the reason in parentheses and the port."""
    if isinstance(value, Unresolved) and isinstance(port, Known):
        return f"({value.why}):{_text(port.value)}"
    return format_value(value)


def _servers(job: Job, launch: Launch) -> str:
    """Return the part of each table that a parameter server holds, for tables whose sizes the program gives."""
    count = known_number(job.value("ps_servers", launch.scope))
    if not count:
        return ""
    total = 0
    for quantity in ("embedding_shape", "parameter_shape"):
        for claim in job.about(quantity, launch.scope):
            shape = claim.value.value if isinstance(claim.value, Known) else None
            if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
                return ""
            size = 4
            for one in shape:
                size *= int(one or 0)
            total += size
    return f"{total / count / 2**20:.1f} MiB on each of {count} ({total} B of 32-bit values)" if total else ""


def _open_quantities(claims: Sequence[Claim]) -> Iterator[OpenQuantity]:
    met: set[tuple[str, Place]] = set()
    for claim in claims:
        value = claim.value
        reason = value.why if isinstance(value, Unresolved) else f"one of {format_value(value)}"
        # The master's address is often part of the rendezvous endpoint.
        key = (reason, _place(claim))
        if isinstance(value, Known) or claim.because or key in met:
            continue
        met.add(key)
        names = value.set_by_caller if isinstance(value, Unresolved) else ()
        decided_by = f"--set {names[0]}=..." if names else ""
        yield OpenQuantity(claim.quantity, reason, _place(claim), decided_by)


def _request(job: Job, price: float | None) -> ResourceRequest:
    places: list[Place] = []

    def number(*quantities: str) -> int | None:
        for quantity in quantities:
            for scope in (None, *(launch.scope for launch in job.launches)):
                claims = job.value_claims(quantity) if scope is None else job.value_claims(quantity, scope)
                found = known_number(job_value(claims)) if claims else None
                if found is not None:
                    places.append(_place(claims[0]))
                    return found
        return None

    nodes = number("nodes")
    gpus = number("gpus_per_node", "pod_gpus")
    limit = number("time_limit_s")
    hours = nodes * gpus * limit / 3600 if nodes and gpus and limit else None
    cost = hours * price if hours is not None and price is not None else None
    return ResourceRequest(nodes, gpus, limit, hours, cost, tuple(dict.fromkeys(places)))


#: Prefixes of the variables that DeepSpeed exports over pdsh: EXPORT_ENVS of deepspeed/launcher/runner.py, and NCCL on
#: CUDA.
_DEEPSPEED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
_HERE = frozenset(("localhost", "127.0.0.1"))


def kept_variables(job: Job, launch: Launch, names: Sequence[str]) -> tuple[str, ...]:
    """Return the variables that the launcher does not pass to other machines; empty if that is unknown."""
    if not set(host_slots(job, launch) or items(job.value("hosts", launch.scope))) - _HERE:
        return ()
    if launch.launcher == "deepspeed" and not job.value_claims("each_node_itself", launch.scope):
        claims = {name: job.value_claims(f"env.{name}", launch.scope) for name in names}
        return tuple(
            name
            for name in names
            if not name.startswith(_DEEPSPEED) and all(_is_exported_here(one.span.path) for one in claims[name])
        )
    if launch.launcher == "mpirun" and job.value("mpi_implementation", launch.scope) == Known("openmpi"):
        passed = job.value("passed_variables", launch.scope)
        if isinstance(passed, Known) and isinstance(passed.value, tuple):
            return tuple(name for name in names if name not in passed.value and not name.startswith("OMPI_"))
    return ()


def _is_exported_here(path: str) -> bool:
    """Return whether the variable is set in the shell, not in a file that DeepSpeed passes to all hosts."""
    return not path.endswith(".deepspeed_env")
