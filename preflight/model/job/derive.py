"""Derives claims that follow from others but are not written in a file: world size, ranks per node, model replicas."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from preflight.model.job.claim import Claim, Relation, Strength
from preflight.model.job.job import Job, Launch
from preflight.model.job.value import Known, Plain, Symbol, Unresolved, Value, items, join, lift, product

#: Launchers of which each task is one rank.
_TASK_LAUNCHERS = ("srun", "mpirun", "horovodrun", "jsrun")
_MODEL_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def with_derived(job: Job) -> Job:
    """Return the job with the claims that can be derived for each launch."""
    for launch in job.launches:
        if launch.launcher in _TASK_LAUNCHERS:
            job = job.with_claims(_processes_per_node_from_tasks(job, launch))
        job = job.with_claims(_processes_from_world_size(job, launch))
        job = job.with_claims(_processes_of_allocation(job, launch))
        job = job.with_claims(_processes_of_filtered_hosts(job, launch))
        job = job.with_claims(_world_size(job, launch))
        job = job.with_claims(_data_parallel_size(job, launch))
    if not job.launches:
        job = job.with_claims(_processes_of_configuration(job))
    return job


def _processes_of_configuration(job: Job) -> Iterator[Claim]:
    """Yield the number of processes per node as `_processes_from_world_size` does, for a job without launches."""
    world_claims = [claim for claim in job.setting("world_size") if claim.source == "accelerate"]
    node_claims = [claim for claim in job.requirement_claims("nodes") if claim.source == "accelerate"]
    if len(world_claims) == 1 and node_claims and not job.setting("processes_per_node"):
        first_claim, because = world_claims[0], (*world_claims, *node_claims)
        value = lift(_processes_per_machine, first_claim.value, join(claim.value for claim in node_claims))
        spelling = " / ".join(dict.fromkeys(claim.spelling for claim in because))
        yield Claim(
            "processes_per_node",
            value,
            first_claim.span,
            spelling,
            "derived",
            strength=first_claim.strength,
            because=because,
        )


def _processes_per_node_from_tasks(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the number of processes per node: the tasks of a node, unless `mpirun -np` starts another number."""
    task_claims = job.setting("tasks_per_node", launch.scope)
    total_claims = [claim for claim in job.setting("tasks", launch.scope) if claim.scope.launch == launch.id]
    node_claims = job.setting("nodes", launch.scope)
    is_of_launch = any(claim.scope.launch for claim in task_claims)
    if launch.launcher != "srun" and total_claims and node_claims and not is_of_launch:
        claim = _divided_claim(total_claims, node_claims, launch)
        if isinstance(claim.value, Known) and claim.value.value:
            yield claim
            return
    process_claims = job.setting("processes_per_node", launch.scope)
    # A hostfile states the largest number of processes of a node, and an option the actual number.
    if task_claims and all(
        claim.source == "hostfile" and claim.strength < task_claims[0].strength for claim in process_claims
    ):
        yield _derived_claim("processes_per_node", join(claim.value for claim in task_claims), task_claims, launch)


def _processes_from_world_size(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the processes per node for Accelerate, which divides the total equally among the machines."""
    scope = launch.scope
    world_claims = [claim for claim in job.setting("world_size", scope) if claim.source == "accelerate"]
    node_claims = [claim for claim in job.requirement_claims("nodes", scope) if claim.source == "accelerate"]
    if world_claims and node_claims and not job.setting("processes_per_node", scope):
        yield _divided_claim(world_claims, node_claims, launch)


def _processes_of_allocation(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the processes per node for a launcher with one process per visible GPU: the granted GPUs."""
    process_claims, gpu_claims = (job.setting(name, launch.scope) for name in ("processes_per_node", "gpus_per_node"))
    task_claims = job.setting("tasks_per_node", launch.scope)
    if (
        not process_claims
        or not gpu_claims
        or launch.launcher in _TASK_LAUNCHERS
        or job.about("env.CUDA_VISIBLE_DEVICES", launch.scope)
    ):
        return
    value = join(claim.value for claim in gpu_claims)
    if (
        _are_gpu_counts(process_claims)
        and isinstance(value, Known)
        and all(claim.value == Known(1) for claim in task_claims)
    ):
        derived_claim = _derived_claim("processes_per_node", value, gpu_claims, launch, located_claim=process_claims[0])
        strength = Strength.SCHEDULER if process_claims[0].strength >= Strength.ENVIRONMENT else Strength.CONFIG
        yield replace(derived_claim, strength=strength)


def _are_gpu_counts(claims: Sequence[Claim]) -> bool:
    """Return whether every claim states the number of GPUs of the host, without a number."""
    return all(isinstance(claim.value, Unresolved) and claim.value.why == Symbol.GPU_COUNT.value for claim in claims)


def _processes_of_filtered_hosts(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the numbers of DeepSpeed's ranks and nodes, if its options select hosts and slots from the hostfile."""
    filter_claims = tuple(
        claim
        for quantity in ("included_slots", "excluded_slots", "nodes", "processes_per_node")
        for claim in job.about(quantity, launch.scope)
        if claim.source == "deepspeed"
    )
    slots = deepspeed_slots(job, launch) if filter_claims else {}
    if not slots:
        return
    slot_counts = [len(host_slots) for host_slots in slots.values()]
    yield _derived_claim("world_size", Known(sum(slot_counts)), filter_claims, launch)
    yield _derived_claim("nodes", Known(len(slot_counts)), filter_claims, launch)
    if len(set(slot_counts)) == 1:
        yield _derived_claim("processes_per_node", Known(slot_counts[0]), filter_claims, launch)


def _divided_claim(total_claims: Sequence[Claim], node_claims: Sequence[Claim], launch: Launch) -> Claim:
    """Return the number of processes per node: the total number divided by the number of nodes."""
    total, nodes = (join(claim.value for claim in claims) for claims in (total_claims, node_claims))
    return _derived_claim(
        "processes_per_node",
        lift(_processes_per_machine, total, nodes),
        (*total_claims, *node_claims),
        launch,
        separator=" / ",
        located_claim=total_claims[0],
    )


def _processes_per_machine(world_size: Plain, node_count: Plain) -> Plain:
    if not isinstance(world_size, int) or not isinstance(node_count, int) or node_count < 1:
        raise ValueError(f"{world_size} processes cannot be divided evenly among {node_count} machines")
    return world_size // node_count


def _world_size(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the world size: nodes times ranks per node or, for ranks that the scheduler starts, the number of tasks."""
    if job.value("ps_mode", launch.scope) == Known(True):
        return
    scope = launch.scope
    started_claims = job.setting("spawned_processes", scope) or job.setting("ray_workers", scope)
    spawned_claims = started_claims if launch.launcher == "python" else ()
    if spawned_claims and not job.value_claims("world_size", scope):
        value = join(claim.value for claim in spawned_claims)
        if isinstance(value, Unresolved) and (option_value := job.value("spawned_by_option", scope)) != value:
            value = _option_count(job, launch, str(option_value.value)) if isinstance(option_value, Known) else value
        yield _derived_claim("world_size", value, spawned_claims, launch)
        return
    task_claims = job.setting("tasks", scope) if launch.launcher in _TASK_LAUNCHERS else ()
    if (
        task_claims
        and job.value("controller", scope) == Known("gloo")
        and (host_slot_counts := host_slots(job, launch))
    ):
        # horovod/runner/gloo_run.py fills every slot of the hosts, whatever `-np` says.
        because = tuple(claim for claim in job.about("host_slots") if claim.scope.node in host_slot_counts)
        yield from _world_size_claims(job, launch, Known(sum(host_slot_counts.values())), (*task_claims, *because))
        return
    if task_claims and started_claims:
        is_one_per_node = all(claim.value == Known(1) for claim in job.setting("tasks_per_node", scope))
        gpu_claims = job.setting("gpus_per_node", scope) if is_one_per_node and _are_gpu_counts(started_claims) else ()
        rank_count = lift(
            product, *(join(c.value for c in claims) for claims in (task_claims, gpu_claims or started_claims))
        )
        because = (*task_claims, *(gpu_claims or started_claims))
        if isinstance(rank_count, Unresolved) and not job.setting("world_size", scope):
            # If the number of spawned processes is unknown, the number of tasks is not the number of ranks.
            yield _derived_claim("world_size", rank_count, because, launch)
        else:
            yield from _world_size_claims(job, launch, rank_count, because)
        return
    if task_claims:
        yield from _world_size_claims(job, launch, join(claim.value for claim in task_claims), task_claims)
        return
    own_node_claims = [claim for claim in job.requirement_claims("nodes", scope) if claim.scope.launch == launch.id]
    node_claims: Sequence[Claim] = own_node_claims or job.setting("nodes", scope)
    process_claims = job.setting("processes_per_node", scope)
    if not node_claims or not process_claims:
        return
    value = lift(product, join(c.value for c in node_claims), join(c.value for c in process_claims))
    yield from _world_size_claims(job, launch, value, (*node_claims, *process_claims))


def _option_count(job: Job, launch: Launch, name: str) -> Value:
    """Return the whole number that the program's option of this name has, or its default; otherwise unresolved."""
    option = f"--{name.replace('_', '-')}"
    arguments = [(argument or "?").replace("_", "-") for argument in launch.arguments]
    option_values = [
        next_argument for argument, next_argument in itertools.pairwise([*arguments, ""]) if argument == option
    ]
    option_values += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{option}=")]
    for claim in job.about("argument_default", launch.scope):
        if (
            not option_values
            and claim.spelling.replace("_", "-").startswith(f"{option}=")
            and isinstance(claim.value, Known)
        ):
            option_values.append(str(claim.value.value))
    return (
        Known(int(option_values[-1]))
        if option_values and option_values[-1].isdecimal()
        else Unresolved(f"the value of {option}")
    )


def _world_size_claims(job: Job, launch: Launch, value: Value, because: Sequence[Claim]) -> Iterator[Claim]:
    """Yield this value as the world size, unless an at least equally strong claim sets another value."""
    world_claims = job.setting("world_size", launch.scope)
    claim = _derived_claim("world_size", value, because, launch)
    if world_claims and all(other.strength >= claim.strength for other in world_claims):
        return
    if isinstance(value, Unresolved) and not world_claims:
        return
    yield claim


def _data_parallel_size(job: Job, launch: Launch) -> Iterator[Claim]:
    parallel_claims = [claim for name in _MODEL_PARALLEL for claim in job.setting(name, launch.scope)]
    world_claims = job.setting("world_size", launch.scope)
    if not parallel_claims or not world_claims or job.setting("data_parallel_size", launch.scope):
        return
    sizes = [
        join(claim.value for claim in claims) for name in _MODEL_PARALLEL if (claims := job.setting(name, launch.scope))
    ]
    value = lift(_quotient, join(claim.value for claim in world_claims), *sizes)
    if not isinstance(value, Unresolved):
        yield _derived_claim("data_parallel_size", value, (*world_claims, *parallel_claims), launch)


def _derived_claim(
    quantity: str,
    value: Value,
    because: Sequence[Claim],
    launch: Launch,
    *,
    separator: str = " x ",
    located_claim: Claim | None = None,
) -> Claim:
    if located_claim is None:
        located_claim = because[-1]
    strength = min(max(claim.strength for claim in because), Strength.FLAG)
    if launch.launcher in _TASK_LAUNCHERS:
        strength = max(claim.strength for claim in because)
    return Claim(
        quantity=quantity,
        value=value,
        span=located_claim.span,
        spelling=separator.join(dict.fromkeys(claim.spelling for claim in because)),
        source="derived",
        scope=launch.scope,
        strength=strength,
        relation=Relation.SETS,
        condition=launch.condition,
        because=tuple(because),
    )


def _quotient(world_size: Plain, *sizes: Plain) -> Plain:
    parallel_size = product(*sizes)
    if (
        not isinstance(world_size, int)
        or not isinstance(parallel_size, int)
        or parallel_size < 1
        or world_size % parallel_size
    ):
        raise ValueError(f"a world of {world_size} ranks is not a multiple of {parallel_size}")
    return world_size // parallel_size


def host_slots(job: Job, launch: Launch) -> dict[str, int]:
    """Return the number of slots of each host, in the order of the list; empty if it is unknown for some host."""
    value = job.value("hosts", launch.scope)
    by_host = _slots_by_host(job, launch)
    hosts = items(value)
    return {host: by_host[host] for host in hosts} if hosts and by_host.keys() >= set(hosts) else {}


def deepspeed_slots(job: Job, launch: Launch) -> dict[str, tuple[int, ...]]:
    """Return the slots that DeepSpeed uses on each host of its hostfile; empty if any of them is unknown.

    The slots are selected as in deepspeed/launcher/runner.py: hosts keep the order of the hostfile; `--include` and
    `--exclude` name hosts, or slots of hosts; `--num_nodes` selects the first hosts, and `--num_gpus` the first slots
    of each host.
    """
    if launch.launcher != "deepspeed":
        return {}
    hosts_claim = next((claim for claim in job.about("hosts", launch.scope) if claim.source == "hostfile"), None)
    by_host = _slots_by_host(job, launch)
    hosts = items(hosts_claim.value) if hosts_claim is not None else ()
    if not hosts or not by_host.keys() >= set(hosts) or _has_duplicate_host(job, hosts):
        return {}
    slots = {host: tuple(range(by_host[host])) for host in hosts}
    for quantity in ("included_slots", "excluded_slots"):
        if not job.value_claims(quantity, launch.scope):
            continue
        filtered_slots = _slots_by_filtered_host(items(job.value(quantity, launch.scope)))
        if not filtered_slots or not filtered_slots.keys() <= slots.keys():
            return {}
        if quantity == "included_slots":
            slots = {host: tuple(filtered_slots[host] or slots[host]) for host in slots if host in filtered_slots}
        else:
            slots = {
                host: tuple(
                    slot
                    for slot in host_slots
                    if host not in filtered_slots or (filtered_slots[host] and slot not in filtered_slots[host])
                )
                for host, host_slots in slots.items()
            }
    slots = {host: host_slots for host, host_slots in slots.items() if host_slots}
    if job.value_claims("included_slots", launch.scope) or job.value_claims("excluded_slots", launch.scope):
        # The launcher rejects counts together with these options.
        return slots
    for quantity in ("nodes", "processes_per_node"):
        for claim in [claim for claim in job.about(quantity, launch.scope) if claim.source == "deepspeed"][:1]:
            limit = claim.value.value if isinstance(claim.value, Known) else None
            if not isinstance(limit, int):
                return {}
            slots = (
                dict(list(slots.items())[:limit])
                if quantity == "nodes"
                else {host: tuple(range(limit)) for host in slots}
            )
    return slots


def _slots_by_host(job: Job, launch: Launch) -> dict[str, int]:
    return {
        claim.scope.node: claim.value.value
        for claim in job.about("host_slots")
        if claim.scope.node
        and claim.scope.launch in ("", launch.id)
        and isinstance(claim.value, Known)
        and isinstance(claim.value.value, int)
    }


def _has_duplicate_host(job: Job, hosts: tuple[str, ...]) -> bool:
    """Return whether the hostfile names a host twice, which DeepSpeed rejects."""
    entries = [claim.scope.node for claim in job.about("host_slots") if claim.source == "hostfile"]
    return any(entries.count(host) > 1 for host in hosts) or len(set(hosts)) < len(hosts)


def _slots_by_filtered_host(entries: Iterable[str]) -> dict[str, list[int]]:
    """Return the slots by host in entries like `node1:0,2`; an empty list means all; empty for other forms."""
    slots_by_host: dict[str, list[int]] = {}
    for entry in entries:
        host, _, slot_list = entry.partition(":")
        slot_numbers = [slot_text.strip() for slot_text in slot_list.split(",") if slot_text.strip()]
        if not all(number.isdecimal() for number in slot_numbers):
            return {}
        slots_by_host[host] = list(dict.fromkeys(map(int, slot_numbers)))
    return slots_by_host
