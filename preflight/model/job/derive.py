"""Values that follow from claims but are not written in a file: world size, ranks per node, model replicas.

A derived claim lists its source claims in `because`, so that a finding about it can point at all of them.

The hosts on which the processes of a launch run, with the slots that options select on each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from preflight.model.job.claim import Claim, Relation, Strength
from preflight.model.job.job import Job, Launch
from preflight.model.job.value import Known, Plain, Symbol, Unresolved, Value, items, join, lift, product

#: Launchers that start the ranks themselves: one task is one rank.
_TASK_STARTERS = ("srun", "mpirun", "horovodrun", "jsrun")
_MODEL_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def with_derived(job: Job) -> Job:
    """Return the job with claims derived launch by launch."""
    for launch in job.launches:
        if launch.launcher in _TASK_STARTERS:
            job = job.with_claims(_processes_per_node_from_tasks(job, launch))
        job = job.with_claims(_processes_from_world(job, launch))
        job = job.with_claims(_processes_of_allocation(job, launch))
        job = job.with_claims(_processes_of_filtered_hosts(job, launch))
        job = job.with_claims(_world_size(job, launch))
        job = job.with_claims(_data_parallel_size(job, launch))
    if not job.launches:
        job = job.with_claims(_processes_of_configuration(job))
    return job


def _processes_of_configuration(job: Job) -> Iterator[Claim]:
    """Yield the number of processes as `_processes_from_world` does, for a configuration without a launch."""
    world = [claim for claim in job.setting("world_size") if claim.source == "accelerate"]
    nodes = [claim for claim in job.requiring("nodes") if claim.source == "accelerate"]
    if len(world) == 1 and nodes and not job.setting("processes_per_node"):
        first, because = world[0], (*world, *nodes)
        value = lift(_share, first.value, join(claim.value for claim in nodes))
        spelling = " / ".join(dict.fromkeys(claim.spelling for claim in because))
        yield Claim(
            "processes_per_node", value, first.span, spelling, "derived", strength=first.strength, because=because
        )


def _processes_per_node_from_tasks(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the number of processes per node: the tasks of a node, unless `mpirun -np` starts another number."""
    tasks = job.setting("tasks_per_node", launch.scope)
    own = [claim for claim in job.setting("tasks", launch.scope) if claim.scope.launch == launch.id]
    nodes = job.setting("nodes", launch.scope)
    if launch.launcher != "srun" and own and nodes and all(not claim.scope.launch for claim in tasks):
        value = lift(_share, join(claim.value for claim in own), join(claim.value for claim in nodes))
        if isinstance(value, Known) and value.value:
            yield _derived_claim("processes_per_node", value, (*own, *nodes), launch, sign=" / ", at=own[0])
            return
    stated = job.setting("processes_per_node", launch.scope)
    # A hostfile states how many processes a node has room for; an option states how many it gets.
    if tasks and all(claim.source == "hostfile" and claim.strength < tasks[0].strength for claim in stated):
        yield _derived_claim("processes_per_node", join(claim.value for claim in tasks), tasks, launch)


def _processes_from_world(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the number of processes per node for Accelerate, which divides the total number equally among the
    machines.
    """
    scope = launch.scope
    world = [claim for claim in job.setting("world_size", scope) if claim.source == "accelerate"]
    nodes = [claim for claim in job.requiring("nodes", scope) if claim.source == "accelerate"]
    if world and nodes and not job.setting("processes_per_node", scope):
        value = lift(_share, join(claim.value for claim in world), join(claim.value for claim in nodes))
        yield _derived_claim("processes_per_node", value, (*world, *nodes), launch, sign=" / ", at=world[0])


def _processes_of_allocation(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield the number of processes per node for a launcher that starts one per visible GPU: the GPUs that the
    scheduler grants.
    """
    stated, gpus = (job.setting(name, launch.scope) for name in ("processes_per_node", "gpus_per_node"))
    tasks = job.setting("tasks_per_node", launch.scope)
    if (
        not stated
        or not gpus
        or launch.launcher in _TASK_STARTERS
        or job.about("env.CUDA_VISIBLE_DEVICES", launch.scope)
    ):
        return
    value = join(claim.value for claim in gpus)
    if _counts_gpus(stated) and isinstance(value, Known) and all(each.value == Known(1) for each in tasks):
        derived = _derived_claim("processes_per_node", value, gpus, launch, at=stated[0])
        above = Strength.SCHEDULER if stated[0].strength >= Strength.ENVIRONMENT else Strength.CONFIG
        yield replace(derived, strength=above)


def _counts_gpus(claims: Sequence[Claim]) -> bool:
    """Whether a number is that of the GPUs of the host."""
    return all(isinstance(each.value, Unresolved) and each.value.why == Symbol.GPU_COUNT.value for each in claims)


def _processes_of_filtered_hosts(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield DeepSpeed's ranks on the hosts and slots that its options select from the hostfile."""
    filters = tuple(
        claim
        for quantity in ("included_slots", "excluded_slots", "nodes", "processes_per_node")
        for claim in job.about(quantity, launch.scope)
        if claim.source == "deepspeed"
    )
    slots = deepspeed_slots(job, launch) if filters else {}
    if not slots:
        return
    counts = [len(own) for own in slots.values()]
    yield _derived_claim("world_size", Known(sum(counts)), filters, launch)
    yield _derived_claim("nodes", Known(len(counts)), filters, launch)
    if len(set(counts)) == 1:
        yield _derived_claim("processes_per_node", Known(counts[0]), filters, launch)


def _share(world: Plain, nodes: Plain) -> Plain:
    if not isinstance(world, int) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"{world} processes cannot be divided among {nodes} machines")
    return world // nodes


def _world_size(job: Job, launch: Launch) -> Iterator[Claim]:
    """Yield nodes times ranks per node; for ranks that the scheduler starts, its tasks."""
    if job.value("ps_mode", launch.scope) == Known(True):
        return
    scope = launch.scope
    started = job.setting("spawned_processes", scope) or job.setting("ray_workers", scope)
    spawned = started if launch.launcher == "python" else ()
    if spawned and not job.value_claims("world_size", scope):
        value = join(claim.value for claim in spawned)
        if isinstance(value, Unresolved) and (option := job.value("spawned_by_option", scope)) != value:
            value = _option_count(job, launch, str(option.value)) if isinstance(option, Known) else value
        yield _derived_claim("world_size", value, spawned, launch)
        return
    tasks = job.setting("tasks", scope) if launch.launcher in _TASK_STARTERS else ()
    if tasks and job.value("controller", scope) == Known("gloo") and (slots := host_slots(job, launch)):
        # horovod/runner/gloo_run.py fills every slot of the hosts, whatever `-np` says.
        because = tuple(claim for claim in job.about("host_slots") if claim.scope.node in slots)
        yield from _unless_set(job, launch, Known(sum(slots.values())), (*tasks, *because))
        return
    if tasks and started:
        alone = all(each.value == Known(1) for each in job.setting("tasks_per_node", scope))
        gpus = job.setting("gpus_per_node", scope) if alone and _counts_gpus(started) else ()
        ranks = lift(product, *(join(c.value for c in claims) for claims in (tasks, gpus or started)))
        because = (*tasks, *(gpus or started))
        if isinstance(ranks, Unresolved) and not job.setting("world_size", scope):
            # Where the number of spawned processes is unknown, the tasks are not the ranks.
            yield _derived_claim("world_size", ranks, because, launch)
        else:
            yield from _unless_set(job, launch, ranks, because)
        return
    if tasks:
        yield from _unless_set(job, launch, join(claim.value for claim in tasks), tasks)
        return
    own = [claim for claim in job.requiring("nodes", scope) if claim.scope.launch == launch.id]
    nodes: Sequence[Claim] = own or job.setting("nodes", scope)
    processes = job.setting("processes_per_node", scope)
    if not nodes or not processes:
        return
    value = lift(product, join(c.value for c in nodes), join(c.value for c in processes))
    yield from _unless_set(job, launch, value, (*nodes, *processes))


def _option_count(job: Job, launch: Launch, name: str) -> Value:
    """Return the value of the program's option of this name, or its default."""
    option = f"--{name.replace('_', '-')}"
    words = [(word or "?").replace("_", "-") for word in launch.arguments]
    given = [after for word, after in itertools.pairwise([*words, ""]) if word == option]
    given += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    for claim in job.about("argument_default", launch.scope):
        if not given and claim.spelling.replace("_", "-").startswith(f"{option}=") and isinstance(claim.value, Known):
            given.append(str(claim.value.value))
    return Known(int(given[-1])) if given and given[-1].isdecimal() else Unresolved(f"the value of {option}")


def _unless_set(job: Job, launch: Launch, value: Value, because: Sequence[Claim]) -> Iterator[Claim]:
    """Yield the world size, unless a claim of at least the same strength sets it (the sum of a hostfile)."""
    stated = job.setting("world_size", launch.scope)
    claim = _derived_claim("world_size", value, because, launch)
    if stated and all(other.strength >= claim.strength for other in stated):
        return
    if isinstance(value, Unresolved) and not stated:
        return
    yield claim


def _data_parallel_size(job: Job, launch: Launch) -> Iterator[Claim]:
    parts = [claim for name in _MODEL_PARALLEL for claim in job.setting(name, launch.scope)]
    world = job.setting("world_size", launch.scope)
    if not parts or not world or job.setting("data_parallel_size", launch.scope):
        return
    sizes = [
        join(claim.value for claim in found) for name in _MODEL_PARALLEL if (found := job.setting(name, launch.scope))
    ]
    value = lift(_quotient, join(claim.value for claim in world), *sizes)
    if not isinstance(value, Unresolved):
        yield _derived_claim("data_parallel_size", value, (*world, *parts), launch)


def _derived_claim(
    quantity: str, value: Value, because: Sequence[Claim], launch: Launch, *, sign: str = " x ", at: Claim | None = None
) -> Claim:
    first = at if at is not None else because[-1]
    strength = min(max(claim.strength for claim in because), Strength.FLAG)
    if launch.launcher in _TASK_STARTERS:
        strength = max(claim.strength for claim in because)
    return Claim(
        quantity=quantity,
        value=value,
        span=first.span,
        spelling=sign.join(dict.fromkeys(claim.spelling for claim in because)),
        source="derived",
        scope=launch.scope,
        strength=strength,
        relation=Relation.SETS,
        condition=launch.condition,
        because=tuple(because),
    )


def _quotient(world: Plain, *sizes: Plain) -> Plain:
    size = product(*sizes)
    if not isinstance(world, int) or not isinstance(size, int) or size < 1 or world % size:
        raise ValueError(f"a world of {world} ranks is not a multiple of {size}")
    return world // size


def host_slots(job: Job, launch: Launch) -> dict[str, int]:
    """Return the slots of each host, in the order of the list; empty unless every host has its own number."""
    value = job.value("hosts", launch.scope)
    by_host = _slots_by_host(job, launch)
    hosts = items(value)
    return {host: by_host[host] for host in hosts} if hosts and by_host.keys() >= set(hosts) else {}


def deepspeed_slots(job: Job, launch: Launch) -> dict[str, tuple[int, ...]]:
    """Return the slots that DeepSpeed uses on each host of its hostfile; empty if any of them is unknown.

    The rules are DeepSpeed's (deepspeed/launcher/runner.py): hosts keep the order of the hostfile; `--include` and
    `--exclude` name hosts or slots of them; `--num_nodes` selects the first hosts, `--num_gpus` the first slots of
    each.
    """
    if launch.launcher != "deepspeed":
        return {}
    listed = next((claim for claim in job.about("hosts", launch.scope) if claim.source == "hostfile"), None)
    by_host = _slots_by_host(job, launch)
    hosts = items(listed.value) if listed is not None else ()
    if not hosts or not by_host.keys() >= set(hosts) or _is_any_listed_twice(job, hosts):
        return {}
    slots = {host: tuple(range(by_host[host])) for host in hosts}
    for quantity in ("included_slots", "excluded_slots"):
        if not job.value_claims(quantity, launch.scope):
            continue
        named = _entries(items(job.value(quantity, launch.scope)))
        if not named or not named.keys() <= slots.keys():
            return {}
        if quantity == "included_slots":
            slots = {host: tuple(named[host] or slots[host]) for host in slots if host in named}
        else:
            slots = {
                host: tuple(slot for slot in own if host not in named or (named[host] and slot not in named[host]))
                for host, own in slots.items()
            }
    slots = {host: own for host, own in slots.items() if own}
    if job.value_claims("included_slots", launch.scope) or job.value_claims("excluded_slots", launch.scope):
        # The launcher rejects counts together with these options.
        return slots
    for quantity in ("nodes", "processes_per_node"):
        for claim in [one for one in job.about(quantity, launch.scope) if one.source == "deepspeed"][:1]:
            count = claim.value.value if isinstance(claim.value, Known) else None
            if not isinstance(count, int):
                return {}
            slots = (
                dict(list(slots.items())[:count])
                if quantity == "nodes"
                else {host: tuple(range(count)) for host in slots}
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


def _is_any_listed_twice(job: Job, hosts: tuple[str, ...]) -> bool:
    """Return whether the hostfile names a host twice, which DeepSpeed rejects."""
    entries = [claim.scope.node for claim in job.about("host_slots") if claim.source == "hostfile"]
    return any(entries.count(host) > 1 for host in hosts) or len(set(hosts)) < len(hosts)


def _entries(entries: Iterable[str]) -> dict[str, list[int]]:
    """Return the slots of each host in `node1:0,2`; an empty list means all slots. Empty for any other string."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        host, _, listed = entry.partition(":")
        numbers = [part.strip() for part in listed.split(",") if part.strip()]
        if not all(number.isdecimal() for number in numbers):
            return {}
        found[host] = list(dict.fromkeys(map(int, numbers)))
    return found
