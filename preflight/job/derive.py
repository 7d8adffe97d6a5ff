"""What follows from claims without anybody writing it down: world size, ranks a node, model replicas.

A derived claim names the claims it came from in `because`, so that a finding about it can point at all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job.claim import Claim, Relation, Strength
from preflight.job.job import Job, Launch
from preflight.job.value import Known, Plain, Unresolved, Value, join, lift

#: Who starts the ranks itself: one task is one rank.
_TASK_STARTERS = ("srun", "mpirun", "horovodrun")
_MODEL_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def with_derived(job: Job) -> Job:
    """The job with what follows from its claims, launch by launch."""
    for launch in job.launches:
        if launch.launcher in _TASK_STARTERS:
            job = job.with_claims(_processes_from_tasks(job, launch))
        job = job.with_claims(_processes_from_world(job, launch))
        job = job.with_claims(_world_size(job, launch))
        job = job.with_claims(_data_parallel_size(job, launch))
    if not job.launches:
        job = job.with_claims(_processes_of_configuration(job))
    return job


def _processes_of_configuration(job: Job) -> Iterator[Claim]:
    """What `_processes_from_world` says of a launch, of a configuration that stands alone."""
    world = [claim for claim in job.setting("world_size") if claim.source == "accelerate"]
    nodes = [claim for claim in job.requiring("nodes") if claim.source == "accelerate"]
    if len(world) == 1 and nodes and not job.setting("processes_per_node"):
        first, because = world[0], (*world, *nodes)
        value = lift(_share, first.value, join(claim.value for claim in nodes))
        spelling = " / ".join(dict.fromkeys(claim.spelling for claim in because))
        yield Claim(
            "processes_per_node", value, first.span, spelling, "derived", strength=first.strength, because=because
        )


def _processes_from_tasks(job: Job, launch: Launch) -> Iterator[Claim]:
    tasks = job.setting("tasks_per_node", launch.scope)
    if tasks and not job.setting("processes_per_node", launch.scope):
        yield _derived("processes_per_node", join(claim.value for claim in tasks), tasks, launch)


def _processes_from_world(job: Job, launch: Launch) -> Iterator[Claim]:
    """Accelerate is told all processes, and starts as many on each machine as go into them."""
    scope = launch.scope
    world = [claim for claim in job.setting("world_size", scope) if claim.source == "accelerate"]
    nodes = [claim for claim in job.requiring("nodes", scope) if claim.source == "accelerate"]
    if world and nodes and not job.setting("processes_per_node", scope):
        value = lift(_share, join(claim.value for claim in world), join(claim.value for claim in nodes))
        yield _derived("processes_per_node", value, (*world, *nodes), launch, sign=" / ", at=world[0])


def _share(world: Plain, nodes: Plain) -> Plain:
    if not isinstance(world, int) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"{world} processes cannot be shared by {nodes} machines")
    return world // nodes


def _world_size(job: Job, launch: Launch) -> Iterator[Claim]:
    """Nodes times ranks a node; for ranks that the scheduler starts, its tasks."""
    if job.value("ps_mode", launch.scope) == Known(True):
        return
    scope = launch.scope
    tasks = job.setting("tasks", scope) if launch.launcher in _TASK_STARTERS else ()
    if tasks:
        yield from _unless_said(job, launch, join(claim.value for claim in tasks), tasks)
        return
    own = [claim for claim in job.requiring("nodes", scope) if claim.scope.launch == launch.id]
    nodes: Sequence[Claim] = own or job.setting("nodes", scope)
    processes = job.setting("processes_per_node", scope)
    if not nodes or not processes:
        return
    value = lift(_product, join(c.value for c in nodes), join(c.value for c in processes))
    yield from _unless_said(job, launch, value, (*nodes, *processes))


def _unless_said(job: Job, launch: Launch, value: Value, because: Sequence[Claim]) -> Iterator[Claim]:
    """The world size, unless something at least as strong sets it already (a hostfile's own sum)."""
    said = job.setting("world_size", launch.scope)
    claim = _derived("world_size", value, because, launch)
    if said and all(other.strength >= claim.strength for other in said):
        return
    if isinstance(value, Unresolved) and not said:
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
        yield _derived("data_parallel_size", value, (*world, *parts), launch)


def _derived(
    quantity: str,
    value: Value,
    because: Sequence[Claim],
    launch: Launch,
    *,
    sign: str = " x ",
    at: Claim | None = None,
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


def _product(*sizes: Plain) -> Plain:
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            raise ValueError(f"{size!r} is no number")
        total *= size
    return total


def _quotient(world: Plain, *sizes: Plain) -> Plain:
    product = _product(*sizes)
    if not isinstance(world, int) or not isinstance(product, int) or product < 1 or world % product:
        raise ValueError(f"a world of {world} ranks is no multiple of {product}")
    return world // product
