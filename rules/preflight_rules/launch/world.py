"""The numbers of nodes, processes, ranks and GPUs, compared across all places that set them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from preflight._util.hostnames import host_of
from preflight._util.sequences import join_some
from preflight.model.findings import Confidence, Severity
from preflight.model.job import (
    Claim,
    Job,
    Launch,
    Plain,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    alternatives,
    lift,
)
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import QUANTITIES, numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, editable, joined, placed, quoted, where, why_unresolved
from preflight.plugins.questions import LaunchQuestion, launches_with, subjects
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SCHEDULERS,
    SPREADING_WRAPPERS,
    certainly_several,
    nodes_spanned,
    on_first_node_only,
    ranks_started,
    roots,
)
from preflight_rules.rendezvous.arguments import node_groups, paddle_peers
from preflight_rules.schedulers.slurm_steps import all_devices_of_lightning
from preflight_rules.sizes.memory import named_gpu

_UNITS = {
    "nodes": "node",
    "tasks_per_node": "task",
    "processes_per_node": "process",
    "world_size": "rank",
    "gpus_per_node": "GPU",
}
_PLURALS = {"process": "processes"}
#: Launchers that give each rank their own WORLD_SIZE, whatever the variable was before.
_WORLD_SIZE_SETTERS = (AGENT_LAUNCHERS - {"paddle"}) | {"deepspeed"}
_MEANINGS = {
    "nodes": "number of nodes",
    "tasks_per_node": "tasks per node",
    "processes_per_node": "processes per node",
    "world_size": "world size",
    "gpus_per_node": "GPUs per node",
}


@rule("WLD001", "launch-size-disagreement", severity=Severity.ERROR)
def launch_size_disagreement(job: Job) -> Iterator[Verdict]:
    """Two places of the job set different numbers of nodes, processes or ranks.

    What it checks: For each launch, and for nodes, tasks per node, processes per node, GPUs per node and world size:
    the number started (by the scheduler, the launcher, the hostfile) equals the number required elsewhere (`--nnodes`,
    `init_process_group(world_size=...)`), and two requirements are equal. A Lightning Trainer that takes all devices
    under srun needs as many tasks on a node as the node has GPUs.

    Why it matters: If announced ranks are never started, all others wait in the rendezvous until it times out after 10
    to 30 minutes; superfluous ranks are rejected, or train a second copy that overwrites the same checkpoints.

    Example: `#SBATCH --nodes=2` with `srun torchrun --nnodes=4 ...`.

    Fix: Write the number once and use it in the other place: `--nnodes=$SLURM_NNODES`.

    Known limits: Only values effective in one launch are compared: `srun -N2` inside a four-node allocation, two
    launches of one script, or a default under a flag contradict nothing. A launch that requests *fewer* nodes than
    granted, without being started on all of them, only leaves nodes idle and is a warning.
    """
    reported: set[tuple[object, ...]] = set()
    for subject, scope, launch in subjects(job):
        for quantity in (q.name for q in QUANTITIES.values() if q.agrees):
            verdict = _agreement(job, quantity, subject, scope, launch)
            if verdict is None:
                continue
            key = (quantity, verdict.locations) if verdict.locations else (quantity, subject)
            if key not in reported:
                reported.add(key)
                yield verdict
        if launch is not None and launch.launcher == "srun":
            verdict = _tasks_of_lightning(job, launch)
            if verdict is not None:
                yield verdict


def _tasks_of_lightning(job: Job, launch: Launch) -> Verdict | None:
    """Return the verdict on srun's tasks for a Trainer that takes all GPUs of a node; None for any other program."""
    devices = all_devices_of_lightning(job, launch.scope)
    tasks, gpus = job.setting("tasks_per_node", launch.scope), job.setting("gpus_per_node", launch.scope)
    # Slurm passes on to the tasks what this option says, and no other.
    stated = [claim for claim in tasks if "ntasks-per-node" in claim.spelling and not claim.because]
    if devices is None or not stated or not gpus:
        return None
    unresolved = why_unresolved((*tasks, *gpus), launch)
    if unresolved is not None:
        claim, why = unresolved
        return unknown(launch.id, f"{_MEANINGS['tasks_per_node']}: {quoted(claim)} is unknown: {why}", at=claim)
    started, granted = numbers(job_value(tasks)), numbers(job_value(gpus))
    if not started or not granted or set(started) & set(granted):
        return passed(launch.id)
    shown = counted(started[0], "task") if len(started) == 1 else f"{joined(started)} tasks"
    return failed(
        launch.id,
        f"{quoted(stated[0])} starts {shown} on each node, but {placed(devices)} makes Lightning train on all "
        f"{joined(granted)} GPUs that {quoted(gpus[0])} grants there, with one task per GPU: it stops.",
        at=stated[0],
        also=((devices, "all devices"), (gpus[0], "GPUs of each node"), (launch, "started here")),
        remedy=f"Set `--ntasks-per-node={joined(granted)}`, or `devices={joined(started)}`.",
    )


def _agreement(job: Job, quantity: str, subject: str, scope: Scope, launch: Launch | None) -> Verdict | None:
    requires = job.requirement_claims(quantity, scope)
    if quantity == "tasks_per_node" and launch is not None and launch.launcher in AGENT_LAUNCHERS:
        return None  # SLU001 reports this.
    if quantity == "world_size" and launch is not None and launch.launcher in _WORLD_SIZE_SETTERS:
        variable_spans = {claim.span for claim in job.about("env.WORLD_SIZE", scope)}
        overwritten = [claim for claim in requires if claim.span in variable_spans]
        if overwritten and len(overwritten) == len(requires):
            return passed(subject)
        requires = tuple(claim for claim in requires if claim.span not in variable_spans)
    if not requires:
        return None
    sets: tuple[Claim, ...] = job.setting(quantity, scope)
    if quantity == "nodes" and launch is not None and any(on_first_node_only(c, launch) for c in sets):
        return None  # SLU003 reports this.
    if quantity == "nodes" and launch is not None and _are_agents(job, launch, requires):
        return passed(subject)
    other_counts = _other_objects(job, launch, sets) if quantity == "nodes" else ()
    if other_counts is None:
        return unknown(subject, f"{_MEANINGS[quantity]}: other nodes of the group are started elsewhere", at=sets[0])
    if any((claim.span.path, claim.span.line) < (sets[0].span.path, sets[0].span.line) for claim in other_counts):
        return None  # Judged at the first object.
    value_claims = roots((*sets, *other_counts))
    if quantity == "world_size" and not sets:
        _, value_claims = ranks_started(job, scope)
    unresolved = why_unresolved((*value_claims, *requires), launch)
    if unresolved is not None:
        claim, why = unresolved
        return unknown(subject, f"{_MEANINGS[quantity]}: {quoted(claim)} is unknown: {why}", at=claim)
    if not value_claims:
        return _conflicting_requirements(quantity, subject, requires)
    if other_counts:
        started: tuple[int, ...] = (sum(_numbers_of((*sets, *other_counts))),)
    else:
        started = numbers(ranks_started(job, scope)[0]) if not sets else _numbers_of(sets)
    for required in requires:
        wanted = numbers(required.value)
        if started and wanted and not set(started) & set(wanted):
            counts_tasks = quantity == "world_size" and all(claim.source in SCHEDULERS for claim in value_claims)
            if counts_tasks and max(wanted) > max(started) and _may_start_ranks(job, launch):
                return unknown(
                    subject, "world size: the program could not be read and may start more ranks", at=required
                )
            return _contradiction(quantity, subject, launch, started, value_claims, required)
    return passed(subject)


def _are_agents(job: Job, launch: Launch, requires: Sequence[Claim]) -> bool:
    """Return whether srun starts one agent per task, and the number of agents equals the nodes that each expects."""
    counts = [job_value(job.setting(name, launch.scope)) for name in ("nodes", "tasks_per_node")]
    agents = numbers(lift(lambda nodes, tasks: int(nodes) * int(tasks), *counts))
    is_torchrun_under_srun = launch.launcher in ("torchrun", "torch.distributed.launch") and "srun" in launch.wrappers
    return is_torchrun_under_srun and len(agents) == 1 and all(numbers(claim.value) == agents for claim in requires)


def _may_start_ranks(job: Job, launch: Launch | None) -> bool:
    """Return whether a line without a launcher starts a program that is not one of the job's files."""
    if launch is None or launch.launcher not in ("python", *SPREADING_WRAPPERS):
        return False
    programs = texts(job_value([claim for claim in job.about("script") if claim.scope == launch.scope]))
    return not set(programs) & {file.path for file in job.files}


def _other_objects(job: Job, launch: Launch | None, sets: Sequence[Claim]) -> tuple[Claim, ...] | None:
    """Return the pod counts of other Kubernetes objects that start nodes of the same group; None if they are unknown.

    One object may contain the master's pod and another object the workers' pods: their launch lines name one master. A
    launch line with its own node rank is one node of a group.
    """
    if launch is None or len(sets) != 1 or sets[0].source != "kubernetes" or sets[0].spelling.startswith("numNodes"):
        # A TrainJob starts all nodes of its group.
        return ()
    master = texts(job_value(job.setting("master_addr", launch.scope)))
    pod_counts: list[Claim] = []
    for other in job.launches:
        is_same_launcher = other.launcher == launch.launcher and other is not launch
        if not master or not is_same_launcher or texts(job_value(job.setting("master_addr", other.scope))) != master:
            continue
        pods = [claim for claim in job.setting("nodes", other.scope) if claim.source == "kubernetes"]
        if not pods:
            return None
        # The pods of all roles of one object are counted together.
        is_same_object = " + " in sets[0].spelling and {(claim.span.path, claim.spelling) for claim in pods} == {
            (sets[0].span.path, sets[0].spelling)
        }
        pod_counts += [claim for claim in pods if claim.span != sets[0].span and not is_same_object]
    if not pod_counts and len(master) == 1 and not _has_master(job, launch, host_of(master[0])):
        return None
    ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
    if not pod_counts and numbers(job_value(ranks)) and _numbers_of(sets) == (1,):
        return None
    return distinct(pod_counts)


def _has_master(job: Job, launch: Launch, master: str) -> bool:
    """Return whether the master may be a pod of the launch line's object; a service may refer to any pod."""
    if not re.match(r"[^.]+-\d+(?:\.|$)", master):
        return True
    for workload in workloads(job):
        if workload.hosts and any(scope == launch.scope for _, scope in workload.launches()):
            return workload.has_host(master)
    return True


def _numbers_of(claims: Iterable[Claim]) -> tuple[int, ...]:
    return tuple(number for claim in claims for number in numbers(claim.value))


def _conflicting_requirements(quantity: str, subject: str, requires: tuple[Claim, ...]) -> Verdict | None:
    for first in requires:
        for second in requires:
            if first.source >= second.source:
                continue
            count, other_count = numbers(first.value), numbers(second.value)
            if count and other_count and not set(count) & set(other_count):
                return failed(
                    subject,
                    f"{quoted(first)} needs the {_MEANINGS[quantity]} to be {joined(count)}, but {placed(second)}"
                    f" needs {joined(other_count)}: no launch can satisfy both.",
                    at=first,
                    also=((second, f"needs {joined(other_count)}"),),
                    remedy=f"Change {editable(first)} or {editable(second)} so that both give the same number.",
                )
    return None


def _contradiction(
    quantity: str,
    subject: str,
    launch: Launch | None,
    started: tuple[int, ...],
    sets: tuple[Claim, ...],
    required: Claim,
) -> Verdict:
    wanted = numbers(required.value)
    unit = _UNITS[quantity]
    units = _PLURALS.get(unit, unit + "s")
    places = " and ".join(f"{placed(claim)}" for claim in sets)
    verb = "gives" if len(sets) == 1 else "give"
    amount = counted(wanted[0], unit, units) if len(wanted) == 1 else f"{joined(wanted)} {units}"
    message = f"{quoted(required)} expects {amount}, but {places} {verb} {joined(started)}. "
    message += _consequence(quantity, started, wanted, launch)
    return failed(
        subject,
        message,
        at=required,
        also=tuple((claim, f"{verb} {joined(alternatives(claim.value))}") for claim in sets),
        remedy=_remedy(quantity, sets, required, started, wanted),
        severity=_severity(quantity, started, wanted, launch, required),
        waits_at=_waits_at(quantity, started, wanted),
    )


def _waits_at(quantity: str, started: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return "rendezvous" if ranks wait there for ranks that are never started; otherwise an empty string."""
    too_few = len(started) == len(wanted) == 1 and wanted[0] > started[0]
    return "rendezvous" if too_few and quantity in ("nodes", "world_size") else ""


def _consequence(quantity: str, started: tuple[int, ...], wanted: tuple[int, ...], launch: Launch | None) -> str:
    have, need = max(started), min(wanted)
    if len(started) > 1 or len(wanted) > 1:
        return "They differ in every branch."
    if quantity == "nodes" and need > have:
        return f"{_range_text('Node', have, need)} will never join; all others wait until rendezvous times out."
    if quantity == "nodes":
        if _is_spread(launch):
            return (
                f"The launcher is also started on {_range_text('node', need, have)}, which belongs to no group."
                if need > 1
                else f"Each of the {have} nodes trains its own copy."
            )
        return f"{_range_text('Node', need, have)} would be idle."
    if quantity == "world_size" and need > have:
        return f"{_range_text('Rank', have, need)} will never be started; all others wait until they time out."
    if quantity == "world_size":
        return f"{_range_text('Rank', need, have)} would be superfluous, and be rejected or wait forever."
    return "One of them is wrong."


def _range_text(noun: str, first: int, end: int) -> str:
    """Return a text such as `Node 4` or `Nodes 4 to 7`."""
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first} to {end - 1}"


def _is_spread(launch: Launch | None) -> bool:
    return launch is not None and bool(SPREADING_WRAPPERS.intersection(launch.wrappers))


def _severity(
    quantity: str, started: tuple[int, ...], wanted: tuple[int, ...], launch: Launch | None, required: Claim
) -> Severity | None:
    """Return a warning if the job runs, but with idle nodes or separate copies; otherwise an error."""
    is_partial = quantity == "nodes" and max(wanted) < min(started) and (max(wanted) == 1 or not _is_spread(launch))
    return Severity.WARNING if is_partial or required.strength is Strength.DEFAULT else None


def _remedy(
    quantity: str, sets: tuple[Claim, ...], required: Claim, started: tuple[int, ...], wanted: tuple[int, ...]
) -> str:
    hint = ""
    if sets[0].source == "slurm" and quantity == "nodes":
        hint = ", or pass $SLURM_NNODES instead of a number"
    others = " or ".join(editable(claim) for claim in sets)
    return f"Change {editable(required)} to {joined(started)}, or {others} so that {joined(wanted)} are started{hint}."


@rule(
    "WLD002",
    "launch-size-exceeds-bound",
    severity=Severity.ERROR,
    otherwise="nothing limits the number of processes of a launch",
)
def launch_size_exceeds_bound(job: Job) -> Iterator[Verdict]:
    """A launch starts more processes or nodes than a hostfile or another limit allows.

    What it checks: What a launch sets or requires (nodes, world size, processes per node) does not exceed a limit in
    the same launch: the hosts of a hostfile, or the sum of their slots. mpirun without a host list starts no more
    processes than the PBS or LSF header has slots for (otherwise a warning).

    Why it matters: `mpirun` stops with "not enough slots available"; DeepSpeed and torchrun wait for hosts that are in
    no list.

    Example: `deepspeed --hostfile=hosts --num_nodes=8 train.py` where `hosts` lists four hosts.

    Fix: Add the missing hosts or slots, or request no more than there are.

    Known limits: With `--oversubscribe` on the mpirun line, nothing is reported. Slots that a scheduler adds are
    unknown.
    """
    reported: set[tuple[object, ...]] = set()
    for subject, scope, _ in subjects(job):
        for quantity in _UNITS:
            bounds = [c for c in job.about(quantity, scope) if c.relation is Relation.AT_MOST]
            requested = (*job.setting(quantity, scope), *job.requirement_claims(quantity, scope))
            for bound in bounds:
                for claim in requested:
                    verdict = _bound_verdict(quantity, subject, claim, bound)
                    if verdict is not None and (claim.span, bound.span, verdict.status) not in reported:
                        reported.add((claim.span, bound.span, verdict.status))
                        yield verdict
    for launch in job.launches:
        verdict = _hostfile_slots_verdict(job, launch) or _header_slots_verdict(job, launch)
        if verdict is not None:
            yield verdict


def _hostfile_slots_verdict(job: Job, launch: Launch) -> Verdict | None:
    """Return the verdict on mpirun's processes and the slots of its hostfile; None if mpirun may oversubscribe."""
    tasks = job.setting("tasks", launch.scope)
    slots = [c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)]
    starter = next((name for name in ("mpirun", "horovodrun") if name in launch.wrappers), None)
    may_oversubscribe = job.setting("oversubscribe", launch.scope) or texts(
        job_value(job.setting("mpi_implementation", launch.scope))
    ) == ("mpich",)
    if starter is None or not tasks or not slots or may_oversubscribe:
        return None
    hosts = [value for c in job.setting("hosts", launch.scope) for value in c.alternatives]
    if len(hosts) != 1 or not isinstance(hosts[0], tuple) or len(hosts[0]) != len(slots):
        return None
    bare_hosts = [str(c.scope.node) for c in slots if _has_one_slot_in_a_list_with_slots(c)]
    if bare_hosts and any(claim.source in SCHEDULERS for claim in job.claims):
        return None
    if undecided_verdict := undecided(launch.id, (*tasks, *slots), launch):
        return undecided_verdict
    requested = numbers(job_value(tasks))
    available = sum(max(numbers(c.value), default=0) for c in slots)
    if not requested or min(requested) <= available:
        return passed(launch.id)
    stops = (
        "mpirun stops with 'not enough slots available'"
        if starter == "mpirun"
        else "horovodrun stops with 'Requested more processes than there are available slots'"
    )
    is_one_list = slots[0].span == slots[-1].span and len(slots) > 1
    slots_text = quoted(slots[0]) if is_one_list or slots[0].source != "hostfile" else slots[0].span.path
    return failed(
        launch.id,
        f"{quoted(tasks[0])} requests {counted(min(requested), 'process', 'processes')}, but {slots_text} has"
        f" {counted(available, 'slot')}{', because a host without a number has one' if bare_hosts else ''}: {stops}.",
        at=tasks[0],
        also=tuple((c, "slots") for c in (slots[:1] if is_one_list else slots[:8])),
        remedy=f"Write the slots of {bare_hosts[0]}, as in {bare_hosts[0]}:{max(numbers(slots[0].value))}."
        if bare_hosts
        else f"Request at most {available} processes, or raise the slots in {slots_text}.",
    )


def _has_one_slot_in_a_list_with_slots(slots: Claim) -> bool:
    """Return whether the host of a claim is one of `-H a:4,b` that has no number; a batch system may give it more."""
    names = re.split(r"[\s,=]+", slots.spelling)
    return slots.source == "mpirun" and names.count(str(slots.scope.node)) == 1


def _header_slots_verdict(job: Job, launch: Launch) -> Verdict | None:
    """Return the verdict on the processes of mpirun without a host list and the slots in the batch script's header."""
    tasks, slots = job.setting("tasks", launch.scope), job.about("batch_slots", launch.scope)
    own_tasks = [claim for claim in tasks if claim.source == "mpirun"]
    may_oversubscribe = job.setting("oversubscribe", launch.scope) or job.setting("mpi_implementation", launch.scope)
    if (
        launch.wrappers[:1] != ("mpirun",)
        or not own_tasks
        or not slots
        or may_oversubscribe
        or job.setting("hosts", launch.scope)
    ):
        return None
    if slots[0].span.path != launch.span.path:
        return None
    requested, available = numbers(job_value(own_tasks)), numbers(slots[0].value)
    if undecided_verdict := undecided(launch.id, (*own_tasks, slots[0]), launch):
        return undecided_verdict
    if not requested or not available or min(requested) <= max(available):
        return passed(launch.id)
    return failed(
        launch.id,
        f"{quoted(own_tasks[0])} requests {counted(min(requested), 'process', 'processes')}, but {placed(slots[0])}"
        f" provides {max(available)}: Open MPI stops with 'not enough slots available', other MPIs share cores.",
        at=own_tasks[0],
        also=((slots[0], f"room for {max(available)}"),),
        remedy=f"Request at most {max(available)} processes, or request more in the batch header.",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
    )


def _bound_verdict(quantity: str, subject: str, claim: Claim, bound: Claim) -> Verdict | None:
    if claim.span == bound.span:
        return None
    unresolved = why_unresolved((claim, bound))
    if unresolved is not None:
        return unknown(subject, f"{_MEANINGS[quantity]}: {quoted(unresolved[0])} is unknown: {unresolved[1]}", at=claim)
    requested, limit = numbers(claim.value), numbers(bound.value)
    if not requested or not limit or min(requested) <= max(limit):
        return passed(subject)
    unit = _UNITS[quantity]
    units = _PLURALS.get(unit, unit + "s")
    return failed(
        subject,
        f"{quoted(claim)} requests {counted(min(requested), unit, units)}, but {placed(bound)} has room for only"
        f" {max(limit)}: {min(requested) - max(limit)} too few.",
        at=claim,
        also=((bound, f"at most {max(limit)}"),),
        remedy=f"Request at most {max(limit)}, or extend {bound.span.path} to {counted(min(requested), unit, units)}.",
    )


@rule(
    "WLD003",
    "processes-differ-between-nodes",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launch lines start nodes of the same job",
)
def processes_differ_between_nodes(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job start different numbers of ranks.

    What it checks: Launch lines of one program with different node ranks start the same number of processes, and a list
    of hosts gives each the same number of slots (otherwise informational).

    Why it matters: Launchers and frameworks assume that all nodes have the same number: ranks get duplicate numbers, or
    all ranks wait for ranks that are never started, and hierarchical collectives and model parallelism need equal
    nodes.

    Example: `--nproc_per_node=8` in node0.sh and `--nproc_per_node=4` in node1.sh.

    Fix: Start the same number of processes on every node, or train only on the nodes that are equal.

    Known limits: torchrun itself can run nodes of different size; a job that is designed for this can ignore the rule.
    """
    # With a list of addresses, each node numbers the ranks of all nodes by its own number of processes.
    listed_groups = (group for group in paddle_peers(job) if job.setting("hosts", group[0].scope))
    for group in (*node_groups(job), *listed_groups):
        counts = [(launch, job.value_claims("processes_per_node", launch.scope)) for launch in group]
        counts = [(launch, claims) for launch, claims in counts if claims]
        if len(counts) < 2:
            continue
        subject = join_some([launch.id for launch in group], 1)
        if undecided_verdict := undecided(subject, [claim for _, claims in counts for claim in claims]):
            yield undecided_verdict
            continue
        first = counts[0][1][0]
        first_counts = set(numbers(job_value(counts[0][1])))
        other = next(
            (c[0] for _, c in counts[1:] if first_counts and not first_counts & set(numbers(job_value(c)))), None
        )
        if other is None:
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(first)} here and {quoted(other)} in {where(other)} start different numbers of ranks per "
                "node in one job.",
                at=first,
                also=((other, "a different number"),),
                remedy="Start the same number on every node, or leave out the smaller node.",
            )
    for launch in job.launches:
        slots = [c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)]
        if len(slots) < 2:
            continue
        undecided_verdict = undecided(launch.id, slots, launch)
        yield undecided_verdict or _judge_slots(launch, slots)


def _judge_slots(launch: Launch, slots: Sequence[Claim]) -> Verdict:
    """Return the verdict on whether the hosts of one launch have equal numbers of slots."""
    other = next((claim for claim in slots if not set(claim.alternatives) & set(slots[0].alternatives)), None)
    if other is None:
        return passed(launch.id)
    return failed(
        launch.id,
        f"{placed(slots[0])} gives one host of the job {joined(slots[0].alternatives)} slots and another"
        f" {joined(other.alternatives)}: hierarchical collectives and model parallelism need equal nodes, and mixed"
        " machines run at the speed of the slowest.",
        at=slots[0],
        also=((other, "a different number"),),
        remedy="Give every host the same number of slots, or leave out the smaller one.",
        severity=Severity.INFO,
    )


# The GPUs of a job's nodes: their number compared with the processes, their models, and MIG instances.


_GPU_BACKENDS = frozenset({"nccl", "cpu:gloo,cuda:nccl"})


def processes(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims about the number of ranks on each node."""
    if launch.launcher == "srun":
        return job.setting("tasks_per_node", launch.scope)
    return job.setting("processes_per_node", launch.scope)


def _several_text(values: Sequence[Plain], singular: str, many: str = "") -> str:
    """Return a text such as `1 GPU`, `2 GPUs` or `1 or 2 GPUs`."""
    return counted(joined(values) if tuple(values) != (1,) else 1, singular, many)


def gpus(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]] | None:
    """Return the number of visible GPUs per node, or of granted GPUs if there are fewer, and its claims."""
    visible, granted = (job.setting(name, launch.scope) for name in ("env.CUDA_VISIBLE_DEVICES", "gpus_per_node"))
    if not visible:
        return (job_value(granted), granted) if granted else None
    visible_count, granted_counts = (
        lift(_device_count, job_value(visible)),
        numbers(job_value(granted)) if granted else (),
    )
    are_fewer_granted = granted_counts and max(granted_counts) < min(numbers(visible_count), default=0)
    return (job_value(granted), granted) if are_fewer_granted else (visible_count, visible)


def _device_count(item: object) -> int:
    return len([part for part in str(item).split(",") if part.strip() and part.strip() != "-1"])


def counts_one_machine(total: int, machines: int, devices: int) -> bool:
    """Return whether the total number of processes equals the GPUs of one machine, and so is probably that machine's
    count.
    """
    return machines > 1 and total == devices


def _runs_on_cpu(job: Job, launch: Launch) -> bool:
    """Return whether the ranks use gloo or MPI and so need no GPU each."""
    claims = job.setting("backend", launch.scope)
    backends = {text.lower() for claim in claims for text in texts(claim.value)}
    return bool(backends) and not backends & _GPU_BACKENDS


#: Programs that give each rank several GPUs by themselves where there are more GPUs than ranks (ms-swift,
#: swift/utils/torch_utils.py, get_default_device_map).
_SPREADING_PROGRAMS = ("swift/cli/",)


@rule(
    "GPU001",
    "more-processes-than-gpus",
    severity=Severity.ERROR,
    otherwise="no launch sets both its number of processes and of GPUs per node",
)
def more_processes_than_gpus(job: Job) -> Iterator[Verdict]:
    """A launch starts more ranks on each node than the node has GPUs.

    What it checks: Processes per node are at most the GPUs that Slurm grants on each node, or that CUDA_VISIBLE_DEVICES
    shows.

    Why it matters: The ranks without a GPU stop with "invalid device ordinal", or two ranks share one and NCCL stops
    with "Duplicate GPU detected".

    Example: `#SBATCH --gres=gpu:4` with `torchrun --nproc_per_node=8`.

    Fix: Start as many processes as there are GPUs.

    Known limits: Ranks that srun starts itself may share a GPU on purpose, so this is a warning unless the script
    requests the nccl backend, and unknown if no file shows that they communicate. With gloo or MPI nothing is reported.
    """
    for launch in job.launches:
        rank_claims, gpu_counts = processes(job, launch), gpus(job, launch)
        if not rank_claims or gpu_counts is None or _runs_on_cpu(job, launch):
            continue
        value, gpu_claims = gpu_counts
        if undecided_verdict := undecided(launch.id, (*rank_claims, *gpu_claims), launch):
            yield undecided_verdict
            continue
        ranks, devices = numbers(job_value(rank_claims)), numbers(value)
        if ranks and devices and min(devices) > 0 and min(ranks) > max(devices):
            severity = _severity_of_gpus(job, launch)
            if launch.launcher == "srun" and severity is not None and not job.about("communicates", launch.scope):
                yield unknown(launch.id, "no file shows that each process needs a GPU of its own", at=rank_claims[0])
                continue
            missing = min(ranks) - max(devices)
            what = f"{_several_text((missing,), 'rank')} will find no GPU"
            yield _gpus_differ(launch, (rank_claims[0], ranks), (gpu_claims[0], devices), what, severity)
        else:
            yield passed(launch.id)


def _gpus_differ(
    launch: Launch,
    ranks: tuple[Claim, tuple[int, ...]],
    devices: tuple[Claim, tuple[int, ...]],
    what: str,
    severity: Severity | None = None,
) -> Verdict:
    """Return the finding on a launch whose nodes have a different number of GPUs than of ranks."""
    provided = _several_text(devices[1], "GPU")
    return failed(
        launch.id,
        f"{quoted(ranks[0])} starts {_several_text(ranks[1], 'rank')} on each node, but {placed(devices[0])} provides"
        f" {provided} there: {what}.",
        at=ranks[0],
        also=((devices[0], provided),),
        remedy=f"Start {_several_text(devices[1], 'process', 'processes')} on each node, or request"
        f" {_several_text(ranks[1], 'GPU')}.",
        severity=severity,
    )


def _severity_of_gpus(job: Job, launch: Launch) -> Severity | None:
    is_default = any(c.strength is Strength.DEFAULT for c in job.requirement_claims("nodes", launch.scope))
    if launch.launcher == "accelerate" and is_default:
        # A configuration in the user's cache may give more machines.
        return Severity.WARNING
    if launch.launcher in ("torchrun", "torch.distributed.launch", "accelerate", "paddle"):
        return None
    backends = {text.lower() for claim in job.setting("backend", launch.scope) for text in texts(claim.value)}
    return None if backends & _GPU_BACKENDS else Severity.WARNING


def _reported_by_acc001(job: Job, launch: Launch, devices: tuple[int, ...]) -> bool:
    """Return whether Accelerate's total is the count of one machine, which ACC001 reports."""
    total = numbers(job_value(job.setting("world_size", launch.scope)))
    machines = numbers(job_value(job.requirement_claims("nodes", launch.scope)))
    if launch.launcher != "accelerate" or len(total) != 1 or len(machines) != 1:
        return False
    return counts_one_machine(total[0], machines[0], devices[0])


@rule("GPU002", "gpus-left-idle", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
def gpus_left_idle(job: Job) -> Iterator[Verdict]:
    """Fewer ranks are started on each node than the node has GPUs.

    What it checks: The launcher starts as many processes per node as GPUs are granted or visible there.

    Why it matters: The idle GPUs are paid for and unavailable to others during the whole run.

    Example: `#SBATCH --gres=gpu:8` with `torchrun --nproc_per_node=4`.

    Fix: Start one process per GPU, or request fewer GPUs.

    Known limits: A process that drives several GPUs is correct. Only an explicit number counts, and only in a job with
    a single launch: other launches may share the node.
    """
    if len(job.launches) != 1:
        yield not_applicable(job.name, "several launches may share the GPUs of a node")
        return
    launch = job.launches[0]
    rank_claims, gpu_counts = processes(job, launch), gpus(job, launch)
    is_explicit = bool(rank_claims) and all(c.strength > Strength.DEFAULT for c in rank_claims)
    if not is_explicit or gpu_counts is None or launch.launcher == "srun":
        yield not_applicable(launch.id, "the number of processes or GPUs per node is not given")
        return
    if any(str(word or "").lstrip("-").startswith("device_map") for word in launch.arguments):
        yield not_applicable(launch.id, "a device map spreads each rank over several GPUs")
        return
    if launch.program.startswith(_SPREADING_PROGRAMS):
        yield not_applicable(launch.id, "ms-swift spreads each rank over several of the node's GPUs")
        return
    value, gpu_claims = gpu_counts
    task_claims = job.setting("tasks_per_node", launch.scope)
    if undecided_verdict := undecided(launch.id, (*rank_claims, *task_claims, *gpu_claims), launch):
        yield undecided_verdict
        return
    tasks = max(numbers(job_value(task_claims)), default=1)
    ranks, devices = tuple(tasks * count for count in numbers(job_value(rank_claims))), numbers(value)
    if ranks and devices and 0 < max(ranks) < min(devices) and not _reported_by_acc001(job, launch, devices):
        what = f"{min(devices) - max(ranks)} stay idle"
        yield _gpus_differ(launch, (rank_claims[0], ranks), (gpu_claims[0], devices), what)
    else:
        yield passed(launch.id)


@rule(
    "GPU003",
    "device-shown-twice",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    otherwise="no launch sets CUDA_VISIBLE_DEVICES",
    each=launches_with("env.CUDA_VISIBLE_DEVICES"),
)
def device_shown_twice(question: LaunchQuestion) -> Verdict | None:
    """CUDA_VISIBLE_DEVICES names a device twice.

    What it checks: The entries of CUDA_VISIBLE_DEVICES for a launch are all different.

    Why it matters: CUDA hides the devices after an invalid entry, and with two ranks on one device NCCL stops with
    "Duplicate GPU detected".

    Example: `CUDA_VISIBLE_DEVICES=0,1,1 torchrun --nproc_per_node=3 train.py`.

    Fix: Name each device once.

    Known limits: Whether a device exists is checked by `preflight check`.
    """
    claim = question.claims[0]
    lists = [[part.strip() for part in text.split(",")] for each in question.claims for text in texts(each.value)]
    if not lists or not all(_first_repeated(devices) for devices in lists):
        return None
    device = _first_repeated(lists[0])
    return failed(
        question.subject,
        f"{quoted(claim)} names device {device} {lists[0].count(device)} times.",
        at=claim,
        remedy=f"Name device {device} once, and start as many processes as there are devices.",
    )


def _first_repeated(devices: list[str]) -> str:
    """Return the first entry that is repeated; empty if there is none."""
    return next((device for device in devices if device and devices.count(device) > 1), "")


#: The separator of alternatives in a Slurm constraint. In brackets, all nodes get the same alternative.
_ALTERNATIVE_SEPARATOR = "|"


@rule(
    "GPU041",
    "gpus-of-different-models",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job with several nodes names its GPU model",
)
def gpus_of_different_models(job: Job) -> Iterator[Verdict]:
    """The ranks of one synchronous job may run on GPUs of different models.

    What it checks: The parts of a heterogeneous Slurm job, the alternatives of a constraint over several nodes, and the
    node selectors and required affinities of the pods that train name one GPU model.

    Why it matters: Each step ends with the slowest rank: faster GPUs wait for the rest of every step, and the batch
    size must fit the smallest memory. Older and newer models also differ in the number formats that they support.

    Example: `#SBATCH --constraint="v100|a100"` with `--nodes=4`.

    Fix: Name one model. In Slurm, `--constraint="[v100|a100]"` gives all nodes the same model.

    Known limits: Jobs with parameter servers are not judged: their trainers need not be equally fast. A GPU model is
    recognized only by its name.
    """
    yield from (*_judge_parts(job), *_judge_constraints(job), *_judge_pods(job))


def _judge_parts(job: Job) -> Iterator[Verdict]:
    """Yield the verdict on the GPU models of the parts of a heterogeneous Slurm job."""
    parts = job.about("component_gpu_type")
    if len(parts) > 1 and not _has_servers(job):
        yield _judge_models(parts[0].span.path, parts)


def _judge_constraints(job: Job) -> Iterator[Verdict]:
    """Yield the verdicts on constraints and types that allow several GPU models on several nodes."""
    seen_claims: set[Claim] = set()
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        for claim in job.setting("gpu_type", launch.scope):
            if claim.source != "slurm" or claim in seen_claims or _has_servers(job):
                continue
            seen_claims.add(claim)
            models = {model for text in texts(claim.value) if "[" not in text for model in _models_in(text)}
            is_open = any(_ALTERNATIVE_SEPARATOR in text for text in texts(claim.value))
            if len(models) < 2 or not is_open:
                yield passed(launch.id)
            elif isinstance(nodes, Unresolved):
                yield unknown(
                    launch.id,
                    f"{quoted(claim)} allows several GPU models, and the number of nodes is unknown",
                    at=claim,
                )
            elif certainly_several(nodes):
                yield failed(
                    launch.id,
                    f"{quoted(claim)} allows each of the {joined(numbers(nodes))} nodes to have "
                    f"{joined(sorted(models))}: every step waits for the slower ones.",
                    at=claim,
                    remedy="Name one model, or put the alternatives in brackets so that all nodes get the same one.",
                )


def _judge_pods(job: Job) -> Iterator[Verdict]:
    """Yield the verdicts on the node selectors and affinities of the roles that train."""
    for workload in workloads(job):
        trainers = workload.trainers
        has_servers = any(role.name.lower() in ("ps", "server") for role in workload.roles)
        claims = [
            claim
            for role in trainers
            for quantity in ("node_label", "gpu_type")
            for claim in role.setting(quantity)
            if _named_models(claim)
        ]
        if has_servers or not claims or not certainly_several(workload.pods(trainers)):
            continue
        yield _judge_models(workload.id, claims)


def _judge_models(subject: str, claims: Sequence[Claim]) -> Verdict:
    """Return the verdict on whether claims about parts of one job name one model."""
    first = claims[0]
    for claim in claims:
        models = _named_models(claim)
        if len(models) > 1:
            return failed(
                subject,
                f"{quoted(claim)} allows {joined(sorted(models))} for the pods or nodes of one job: every step waits"
                " for the slower ones.",
                at=claim,
                remedy="Name one model.",
            )
        if models and _named_models(first) and models != _named_models(first):
            return failed(
                subject,
                f"{placed(first)} and {placed(claim)} give the ranks of one job different GPU models: every step "
                "waits for the slower ones.",
                at=claim,
                also=((first, "another model"),),
                remedy="Name one model for all ranks.",
            )
    unresolved = next((claim for claim in claims if isinstance(claim.value, Unresolved)), None)
    if unresolved is not None:
        return unknown(subject, f"{quoted(unresolved)} is known only at run time", at=unresolved)
    return passed(subject)


def _named_models(claim: Claim) -> set[str]:
    """Return the models that a label, type or constraint allows."""
    return {model for text in texts(claim.value) for model in _models_in(text.rpartition("=")[2])}


def _models_in(text: str) -> Iterator[str]:
    for part in text.strip("[]\"'").split(_ALTERNATIVE_SEPARATOR):
        gpu = named_gpu(part)
        if gpu is not None:
            yield gpu.name


def _has_servers(job: Job) -> bool:
    return any(True in claim.alternatives for claim in job.about("ps_mode"))


_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: A MIG instance by its id, or by GPU and instance numbers.
_INSTANCE = re.compile(r"MIG-\S+", re.IGNORECASE)
#: Scheduler names of MIG profiles: `3g.40gb`, `nvidia_a100_3g.20gb`, `1g.10gb.me`.
_PROFILE = re.compile(r"(?:.*[_-])?[1-7]g\.\d+gb.*")


@rule(
    "ENV007",
    "several-mig-instances-for-one-process",
    severity=Severity.WARNING,
    otherwise="no launch makes MIG instances visible",
)
def several_mig_instances_for_one_process(job: Job) -> Iterator[Verdict]:
    """Several MIG instances are visible to one process, but CUDA enumerates only the first.

    What it checks: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES contain at most one `MIG-...`, and no launcher
    starts several ranks on a node for which the scheduler grants several MIG instances.

    Why it matters: A CUDA process sees only one MIG instance, even if several are visible. The rank that takes the
    second stops with "device >= 0 && device < num_gpus", and NCCL cannot connect two instances of one GPU in any case.

    Example: `CUDA_VISIBLE_DEVICES=MIG-6a0f...,MIG-2c31... torchrun --nproc_per_node=2 train.py`.

    Fix: Use whole GPUs for a distributed run, or start one process for each instance with its own CUDA_VISIBLE_DEVICES
    and a backend that needs no direct transfers (gloo).

    Known limits: A script that gives each child process its own instance is also reported.
    """
    seen_spellings: set[str] = set()
    for subject, scope, launch in subjects(job):
        for claim in (c for name in _VISIBLE_DEVICES for c in job.setting(f"env.{name}", scope)):
            values = texts(claim.value)
            counts = [len(_INSTANCE.findall(text.replace(",", " "))) for text in values]
            if not any(counts) or claim.spelling in seen_spellings:
                continue
            seen_spellings.add(claim.spelling)
            verdict = undecided(subject, (claim,), launch)
            if verdict is None and min(counts) > 1:
                verdict = failed(
                    subject,
                    f"{quoted(claim)} makes {counts[0]} MIG instances visible, but a process can use only the first.",
                    at=claim,
                    also=((launch, "sees them"),) if launch is not None else (),
                    remedy="Make one instance visible to each process, or use whole GPUs.",
                )
            yield verdict or passed(subject)
        types = job.setting("gpu_type", scope)
        if (
            launch is None
            or not types
            or not all(_PROFILE.fullmatch(t) for c in types for t in texts(c.value) or ("",))
        ):
            continue
        ranks, gpu_counts = processes(job, launch), job.setting("gpus_per_node", scope)
        verdict = undecided(subject, (*types, *ranks, *gpu_counts), launch)
        if (
            verdict is None
            and launch.launcher != "srun"
            and certainly_several(job_value(ranks))
            and certainly_several(job_value(gpu_counts))
        ):
            verdict = failed(
                subject,
                f"{quoted(types[0])} requests MIG instances, and {quoted(ranks[0])} starts "
                f"{numbers(job_value(ranks))[0]} ranks that see the same list: each can use only the first.",
                at=types[0],
                also=((ranks[0], "ranks"),),
                remedy="Request whole GPUs, or start one process for each instance with its own CUDA_VISIBLE_DEVICES.",
            )
        yield verdict or passed(subject)
