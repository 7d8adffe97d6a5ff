"""Builds the plan of each job from the claims of its files."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence

from preflight import __version__
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
    ResourceRequest,
    Setting,
)
from preflight.commands.plan.rank_rows import node_claims, rank_rows, span, starts_here, starts_one
from preflight.model.job import UNSEEN, Claim, Job, Known, Launch, OneOf, Relation, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.derive import host_slots
from preflight.model.job.quantities import QUANTITIES
from preflight.model.job.value import Value, items, known_number

_INTERFACES = frozenset(
    (
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"),
        *("RCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "MPI_INTERFACE", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE"),
        *("HOROVOD_GLOO_IFACE", "I_MPI_HYDRA_IFACE", "OMPI_MCA_btl_tcp_if_include", "BKCL_SOCKET_IFNAME"),
    )
)
_PATHS = (
    *("working_directory", "data_path", "index_files", "input_file", "checkpoint_path", "resume_path", "output_file"),
    *("container", "interpreter", "cluster_workspace"),
)
#: Quantities that the plan shows elsewhere, or that describe the program's text and not the ranks.
_NOT_SETTINGS = frozenset(
    (
        *(*_PATHS, "nodes", "processes_per_node", "world_size", "script", "hosts", "host_slots", "batch_option"),
        *("master_addr", "master_port", "rendezvous_endpoint", "rendezvous_backend", "ps_server_endpoints"),
        *("ps_worker_endpoints", "argument_default", "declared_options", "strict_arguments", "entry_point"),
        "program_followed",
        "program_outcome",
        "config_of_option",
        *(
            "variable_read",
            "required_variable",
            "rank_setter",
            "dataloader",
            "distributed_sampler",
            "uses_ddp",
            "loop_over_epochs",
        ),
        *("set_epoch_called", "step", "step_background", "sampler_shuffle", "dataloader_sampler", "plain_program"),
        *("time_limit", "passed_variables", "local_rank_argument", "installing_line", "package", "prelude"),
        "imported_framework",
        *(
            "prelude",
            "rank_argument",
            "starts_here",
            "directory_made",
            "folder_made",
            "unexpanded_variable",
            "trainer_argument",
            "deepspeed_key",
        ),
    )
)
#: Quantities that are listed as open if the files do not determine them.
_DECISIVE = (
    *("nodes", "processes_per_node", "world_size", "node_rank", "master_addr", "master_port", "rendezvous_endpoint"),
    *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "expert_parallel_size"),
    *("train_batch_size", "micro_batch_size_per_gpu", "gradient_accumulation_steps", "ps_servers", "ps_workers"),
    *("ps_server_endpoints", "ps_worker_endpoints", "data_path", "checkpoint_path", "time_limit_s", "hosts"),
)
#: A larger grid is not drawn: it would be unreadable, and a file may claim any number of stages.
_MAX_REPLICAS, _MAX_STAGES = 16, 128
_ELASTIC = ("torchrun", "torch.distributed.launch", "accelerate")


def plan_of(
    jobs: Sequence[Job],
    *,
    given: Mapping[str, str] | None = None,
    assumed: Mapping[str, str] | None = None,
    price_per_gpu_hour: float | None = None,
) -> Plan:
    """Return the plan of these jobs.

    Args:
        jobs: as returned by `preflight.config.selection.jobs_in`.
        given: variables that the user set for the plan.
        assumed: variables that count as not set, each with the default that is taken.
        price_per_gpu_hour: in the user's currency.
    """
    made = tuple(_job_plan(job, price_per_gpu_hour) for job in jobs if job.launches or job.files or job.notes)
    return Plan(__version__, made, _assignments(given or {}), _assignments(assumed or {}))


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
        open=tuple(_open([claim for name in _DECISIVE for claim in job.value_claims(name, scope)])),
    )


def _rank_arguments(job: Job, launch: Launch) -> tuple[str, ...]:
    """The arguments that a launcher puts before the program's own, different for each rank."""
    value = job.value("rank_argument", launch.scope)
    return (str(value.value),) if isinstance(value, Known) else ()


def shown(value: Value) -> str:
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
    """Return the value of a quantity that a launch runs with; None if the files do not state it."""
    chosen = node_claims(job, launch) if quantity == "nodes" else job.value_claims(quantity, launch.scope)
    if not chosen and quantity in ("nodes", "world_size") and starts_here(job, launch):
        return _on_one_node(job, launch, quantity)
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
        shown(value),
        isinstance(value, Known),
        chosen[0].spelling,
        _place(chosen[0]),
        tuple(dict.fromkeys(others)),
        known.unit if known is not None else "",
    )


def _on_one_node(job: Job, launch: Launch, quantity: str) -> Setting | None:
    """The number of nodes, or of ranks, of a launch that starts all of its ranks on its own machine."""
    chosen = job.value_claims("starts_here" if quantity == "nodes" else "processes_per_node", launch.scope)
    if not chosen:
        return None
    value: Value = Known(1) if quantity == "nodes" else job_value(chosen)
    return Setting(quantity, shown(value), isinstance(value, Known), chosen[0].spelling, _place(chosen[0]))


def _settings(job: Job, launch: Launch, wanted: Callable[[str], bool]) -> Iterator[Setting]:
    for name in sorted({claim.quantity for claim in job.claims if wanted(claim.quantity)}):
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
    """The ranks of each pipeline stage and replica, in Megatron-LM's order: tensor, context, data, pipeline."""
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
        equation = f"{whole} samples do not divide by {micro} micro batch x {replicas} data-parallel ranks = {each}"
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
        host = shown(job_value(address)) if address else "the first node"
        number = shown(job_value(port)) if port else "the launcher's default port"
        agents = launch.launcher in _ELASTIC
        who = "the launcher on every node, and every rank" if agents else "every rank"
        yield Endpoint("store of rank 0", f"{host}:{number}", who, _place(first))
    for quantity, purpose, who in (
        ("ps_server_endpoints", "parameter server", "every trainer"),
        ("ps_worker_endpoints", "trainer", "the other trainers, for rendezvous"),
    ):
        for claim in job.value_claims(quantity, scope)[:1]:
            names = claim.value.value if isinstance(claim.value, Known) else shown(claim.value)
            for one in names if isinstance(names, tuple) else (names,):
                yield Endpoint(purpose, str(one), who, _place(claim))


def _address(value: Value, port: Value) -> str:
    """An endpoint as written; if the host is unknown, the reason in parentheses and the port."""
    if isinstance(value, Unresolved) and isinstance(port, Known):
        return f"({value.why}):{_text(port.value)}"
    return shown(value)


def _servers(job: Job, launch: Launch) -> str:
    """The part of each table that a parameter server holds, for tables whose sizes the program gives."""
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


def _open(claims: Sequence[Claim]) -> Iterator[OpenQuantity]:
    met: set[tuple[str, Place]] = set()
    for claim in claims:
        value = claim.value
        reason = value.why if isinstance(value, Unresolved) else f"one of {shown(value)}"
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
    """The variables that the launcher does not pass to other machines; none if that is unknown."""
    if not set(host_slots(job, launch) or _hosts(job, launch)) - _HERE:
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
    """Whether it is set in the shell, and not in a file that DeepSpeed passes to all hosts."""
    return not path.endswith(".deepspeed_env")


def _hosts(job: Job, launch: Launch) -> tuple[str, ...]:
    return items(job.value("hosts", launch.scope))
