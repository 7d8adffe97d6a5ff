"""The numbers of nodes, processes and ranks, compared across all places that set them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from preflight._util.hostnames import host_of
from preflight._util.sequences import join_some
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Relation, Scope, Strength, alternatives, lift
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import QUANTITIES, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, editable, joined, placed, quoted, where, why_unresolved
from preflight.plugins.questions import subjects
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SCHEDULERS,
    SPREADING_WRAPPERS,
    on_first_node_only,
    ranks_started,
    roots,
)
from preflight_rules.rendezvous.siblings import groups, peers

_UNITS = {
    "nodes": "node",
    "tasks_per_node": "task",
    "processes_per_node": "process",
    "world_size": "rank",
    "gpus_per_node": "GPU",
}
_PLURALS = {"process": "processes"}
#: Launchers that give each rank a WORLD_SIZE of their own, whatever the variable was before.
_SETS_WORLD_SIZE = (AGENT_LAUNCHERS - {"paddle"}) | {"deepspeed"}
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

    What it checks: For each launch, and for each of: nodes, tasks per node, processes per node, GPUs per node and world
    size, that the number started (by the scheduler, the launcher, the hostfile) equals the number required elsewhere
    (`--nnodes`, `init_process_group(world_size=...)`), and that two requirements equal each other.

    Why it matters: If announced ranks are never started, all others wait in the rendezvous until it times out after 10
    to 30 minutes; surplus ranks are rejected, or train a second copy over the same checkpoints.

    Example: `#SBATCH --nodes=2` with `srun torchrun --nnodes=4 ...`.

    Fix: Write the number once and use it in the other place: `--nnodes=$SLURM_NNODES`.

    Known limits: Only values in force in one launch are compared: `srun -N2` inside a four-node allocation, two
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


def _agreement(job: Job, quantity: str, subject: str, scope: Scope, launch: Launch | None) -> Verdict | None:
    requires = job.requiring(quantity, scope)
    if quantity == "tasks_per_node" and launch is not None and launch.launcher in AGENT_LAUNCHERS:
        return None  # SLU001 reports this.
    if quantity == "world_size" and launch is not None and launch.launcher in _SETS_WORLD_SIZE:
        given = {claim.span for claim in job.about("env.WORLD_SIZE", scope)}
        overwritten = [claim for claim in requires if claim.span in given]
        if overwritten and len(overwritten) == len(requires):
            return passed(subject)
        requires = tuple(claim for claim in requires if claim.span not in given)
    if not requires:
        return None
    sets: tuple[Claim, ...] = job.setting(quantity, scope)
    if quantity == "nodes" and launch is not None and any(on_first_node_only(c, launch) for c in sets):
        return None  # SLU003 reports this.
    if quantity == "nodes" and launch is not None and _are_agents(job, launch, requires):
        return passed(subject)
    others = _other_objects(job, launch, sets) if quantity == "nodes" else ()
    if others is None:
        return unknown(subject, f"{_MEANINGS[quantity]}: other nodes of the group are started elsewhere", at=sets[0])
    if any((claim.span.path, claim.span.line) < (sets[0].span.path, sets[0].span.line) for claim in others):
        return None  # Judged at the first object.
    value_claims = roots((*sets, *others))
    if quantity == "world_size" and not sets:
        _, value_claims = ranks_started(job, scope)
    undecided_verdict = why_unresolved((*value_claims, *requires), launch)
    if undecided_verdict is not None:
        claim, why = undecided_verdict
        return unknown(subject, f"{_MEANINGS[quantity]}: {quoted(claim)} is unknown: {why}", at=claim)
    if not value_claims:
        return _conflicting_requirements(quantity, subject, requires)
    if others:
        started: tuple[int, ...] = (sum(_numbers_of((*sets, *others))),)
    else:
        started = numbers(ranks_started(job, scope)[0]) if not sets else _numbers_of(sets)
    for required in requires:
        wanted = numbers(required.value)
        if started and wanted and not set(started) & set(wanted):
            of_tasks = quantity == "world_size" and all(claim.source in SCHEDULERS for claim in value_claims)
            if of_tasks and max(wanted) > max(started) and _may_start_ranks(job, launch):
                return unknown(subject, "world size: the program was not read and may start more ranks", at=required)
            return _contradiction(quantity, subject, launch, started, value_claims, required)
    return passed(subject)


def _are_agents(job: Job, launch: Launch, requires: Sequence[Claim]) -> bool:
    """Whether srun starts an agent in every task, and the agents are as many as the nodes that each expects."""
    stated = [job_value(job.setting(name, launch.scope)) for name in ("nodes", "tasks_per_node")]
    agents = numbers(lift(lambda nodes, tasks: int(nodes) * int(tasks), *stated))
    numbered = launch.launcher in ("torchrun", "torch.distributed.launch") and "srun" in launch.wrappers
    return numbered and len(agents) == 1 and all(numbers(claim.value) == agents for claim in requires)


def _may_start_ranks(job: Job, launch: Launch | None) -> bool:
    """Whether a line without a launcher of ranks starts a program that is not among the files."""
    if launch is None or launch.launcher not in ("python", *SPREADING_WRAPPERS):
        return False
    programs = texts(job_value([claim for claim in job.about("script") if claim.scope == launch.scope]))
    return not set(programs) & {file.path for file in job.files}


def _other_objects(job: Job, launch: Launch | None, sets: Sequence[Claim]) -> tuple[Claim, ...] | None:
    """The numbers of pods in other Kubernetes objects that start nodes of the same group; None if they are not known.

    One object may hold the pod of the master, and another those of the workers: their launch lines name one master. A
    launch line with a node rank of its own is one node of a group.
    """
    if launch is None or len(sets) != 1 or sets[0].source != "kubernetes" or sets[0].spelling.startswith("numNodes"):
        # A TrainJob starts all nodes of its group.
        return ()
    master = texts(job_value(job.setting("master_addr", launch.scope)))
    found: list[Claim] = []
    for other in job.launches:
        alike = other.launcher == launch.launcher and other is not launch
        if not master or not alike or texts(job_value(job.setting("master_addr", other.scope))) != master:
            continue
        pods = [claim for claim in job.setting("nodes", other.scope) if claim.source == "kubernetes"]
        if not pods:
            return None
        # The pods of all roles of one object are counted together.
        same = " + " in sets[0].spelling and {(claim.span.path, claim.spelling) for claim in pods} == {
            (sets[0].span.path, sets[0].spelling)
        }
        found += [claim for claim in pods if claim.span != sets[0].span and not same]
    if not found and len(master) == 1 and not _has_master(job, launch, host_of(master[0])):
        return None
    ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
    if not found and numbers(job_value(ranks)) and _numbers_of(sets) == (1,):
        return None
    return distinct(found)


def _has_master(job: Job, launch: Launch, master: str) -> bool:
    """Whether the master may be a pod of the object that holds a launch line; any service may lead to one."""
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
            count, other = numbers(first.value), numbers(second.value)
            if count and other and not set(count) & set(other):
                return failed(
                    subject,
                    f"{quoted(first)} needs the {_MEANINGS[quantity]} to be {joined(count)}, but {placed(second)}"
                    f" needs {joined(other)}: no launch can satisfy both.",
                    at=first,
                    also=((second, f"needs {joined(other)}"),),
                    remedy=f"Make {editable(first)} and {editable(second)} give the same number.",
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
    spelled = " and ".join(f"{placed(claim)}" for claim in sets)
    verb = "gives" if len(sets) == 1 else "give"
    amount = counted(wanted[0], unit, units) if len(wanted) == 1 else f"{joined(wanted)} {units}"
    message = f"{quoted(required)} expects {amount}, but {spelled} {verb} {joined(started)}. "
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
    """The claims of the rendezvous at which ranks wait for those that are never started."""
    too_few = len(started) == len(wanted) == 1 and wanted[0] > started[0]
    return "rendezvous" if too_few and quantity in ("nodes", "world_size") else ""


def _consequence(quantity: str, started: tuple[int, ...], wanted: tuple[int, ...], launch: Launch | None) -> str:
    have, need = max(started), min(wanted)
    if len(started) > 1 or len(wanted) > 1:
        return "The two differ in every branch."
    if quantity == "nodes" and need > have:
        return f"{_range('Node', have, need)} will never join; all others wait until rendezvous times out."
    if quantity == "nodes":
        if _is_spread(launch):
            return (
                f"The launcher is also started on {_range('node', need, have)}, which no group includes."
                if need > 1
                else f"Each of the {have} nodes trains its own copy."
            )
        return f"{_range('Node', need, have)} would be idle."
    if quantity == "world_size" and need > have:
        return f"{_range('Rank', have, need)} will never be started; all others wait until they time out."
    if quantity == "world_size":
        return f"{_range('Rank', need, have)} would be surplus: rejected or left waiting."
    return "One of the two is wrong."


def _range(noun: str, first: int, end: int) -> str:
    """`Node 4`, `Nodes 4 to 7`."""
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first} to {end - 1}"


def _is_spread(launch: Launch | None) -> bool:
    return launch is not None and bool(SPREADING_WRAPPERS.intersection(launch.wrappers))


def _severity(
    quantity: str, started: tuple[int, ...], wanted: tuple[int, ...], launch: Launch | None, required: Claim
) -> Severity | None:
    """Warning where the job runs, but with idle nodes or separate copies; otherwise error."""
    if quantity == "nodes" and max(wanted) < min(started) and (max(wanted) == 1 or not _is_spread(launch)):
        return Severity.WARNING
    if required.strength is Strength.DEFAULT:
        return Severity.WARNING
    return None


def _remedy(
    quantity: str, sets: tuple[Claim, ...], required: Claim, started: tuple[int, ...], wanted: tuple[int, ...]
) -> str:
    hint = ""
    if sets[0].source == "slurm" and quantity == "nodes":
        hint = ", or pass $SLURM_NNODES instead of a number"
    others = " or ".join(editable(claim) for claim in sets)
    return f"Change {editable(required)} to {joined(started)}, or {others} so that {joined(wanted)} are started{hint}."


@rule("WLD002", "launch-size-exceeds-bound", severity=Severity.ERROR, otherwise="nothing limits the size of a launch")
def launch_size_exceeds_bound(job: Job) -> Iterator[Verdict]:
    """A launch starts more than a hostfile or another bound allows.

    What it checks: That what a launch sets or requires (nodes, world size, processes per node) is not more than what a
    bound in the same launch allows: the hosts of a hostfile, the sum of their slots; and that mpirun without hosts of
    its own starts no more than the header of PBS or LSF makes room for, which is a warning.

    Why it matters: `mpirun` stops with "not enough slots available"; DeepSpeed and torchrun wait for hosts that no list
    names.

    Example: `deepspeed --hostfile=hosts --num_nodes=8 train.py` where `hosts` lists four hosts.

    Fix: Add the missing hosts or slots, or request no more than there are.

    Known limits: With `--oversubscribe` on the mpirun line nothing is reported. Slots that a scheduler adds are not
    known.
    """
    reported: set[tuple[object, ...]] = set()
    for subject, scope, _ in subjects(job):
        for quantity in _UNITS:
            bounds = [c for c in job.about(quantity, scope) if c.relation is Relation.AT_MOST]
            requested = (*job.setting(quantity, scope), *job.requiring(quantity, scope))
            for bound in bounds:
                for claim in requested:
                    verdict = _bound_verdict(quantity, subject, claim, bound)
                    if verdict is not None and (claim.span, bound.span, verdict.status) not in reported:
                        reported.add((claim.span, bound.span, verdict.status))
                        yield verdict
    for launch in job.launches:
        verdict = _within_slots(job, launch) or _within_header(job, launch)
        if verdict is not None:
            yield verdict


def _within_slots(job: Job, launch: Launch) -> Verdict | None:
    """Compare the processes of mpirun with the slots of its hostfile, unless it may oversubscribe."""
    tasks = job.setting("tasks", launch.scope)
    slots = [c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)]
    starter = next((name for name in ("mpirun", "horovodrun") if name in launch.wrappers), None)
    allowed = job.setting("oversubscribe", launch.scope) or texts(
        job_value(job.setting("mpi_implementation", launch.scope))
    ) == ("mpich",)
    if starter is None or not tasks or not slots or allowed:
        return None
    hosts = [value for c in job.setting("hosts", launch.scope) for value in c.alternatives]
    if len(hosts) != 1 or not isinstance(hosts[0], tuple) or len(hosts[0]) != len(slots):
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
    listed = slots[0].span == slots[-1].span and len(slots) > 1
    place = quoted(slots[0]) if listed or slots[0].source != "hostfile" else slots[0].span.path
    return failed(
        launch.id,
        f"{quoted(tasks[0])} requests {counted(min(requested), 'process', 'processes')}, but {place} has"
        f" {counted(available, 'slot')}: {stops}.",
        at=tasks[0],
        also=tuple((c, "slots") for c in (slots[:1] if listed else slots[:8])),
        remedy=f"Request at most {available} processes, or raise the slots in {place}.",
    )


def _within_header(job: Job, launch: Launch) -> Verdict | None:
    """Compare the processes of mpirun without a host list with the slots in the header of the batch script."""
    tasks, slots = job.setting("tasks", launch.scope), job.about("batch_slots", launch.scope)
    own = [claim for claim in tasks if claim.source == "mpirun"]
    allowed = job.setting("oversubscribe", launch.scope) or job.setting("mpi_implementation", launch.scope)
    if launch.wrappers[:1] != ("mpirun",) or not own or not slots or allowed or job.setting("hosts", launch.scope):
        return None
    if slots[0].span.path != launch.span.path:
        return None
    requested, available = numbers(job_value(own)), numbers(slots[0].value)
    if undecided_verdict := undecided(launch.id, (*own, slots[0]), launch):
        return undecided_verdict
    if not requested or not available or min(requested) <= max(available):
        return passed(launch.id)
    return failed(
        launch.id,
        f"{quoted(own[0])} requests {counted(min(requested), 'process', 'processes')}, but {placed(slots[0])}"
        f" provides {max(available)}: Open MPI stops with 'not enough slots available', others share cores.",
        at=own[0],
        also=((slots[0], f"room for {max(available)}"),),
        remedy=f"Request at most {max(available)} processes, or request more in the header.",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
    )


def _bound_verdict(quantity: str, subject: str, claim: Claim, bound: Claim) -> Verdict | None:
    if claim.span == bound.span:
        return None
    undecided_verdict = why_unresolved((claim, bound))
    if undecided_verdict is not None:
        return unknown(
            subject,
            f"{_MEANINGS[quantity]}: {quoted(undecided_verdict[0])} is unknown: {undecided_verdict[1]}",
            at=claim,
        )
    requested, most = numbers(claim.value), numbers(bound.value)
    if not requested or not most or min(requested) <= max(most):
        return passed(subject)
    unit = _UNITS[quantity]
    units = _PLURALS.get(unit, unit + "s")
    return failed(
        subject,
        f"{quoted(claim)} requests {counted(min(requested), unit, units)}, but {placed(bound)} has room for only"
        f" {max(most)}: {min(requested) - max(most)} too few.",
        at=claim,
        also=((bound, f"at most {max(most)}"),),
        remedy=f"Request at most {max(most)}, or extend {bound.span.path} to {counted(min(requested), unit, units)}.",
    )


@rule(
    "WLD003",
    "processes-differ-between-nodes",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launch lines start nodes of one job",
)
def processes_differ_between_nodes(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job start different numbers of ranks.

    What it checks: Launch lines of one program that carry different node ranks start the same number of processes, and
    a list of hosts gives each the same number of slots (otherwise informational).

    Why it matters: Launchers and frameworks assume the number of one node for all: ranks are numbered twice or the
    world waits for ranks that are never started, and hierarchical collectives and model parallelism need equal nodes.

    Example: `--nproc_per_node=8` in node0.sh and `--nproc_per_node=4` in node1.sh.

    Fix: Start the same number of processes on every node, or train on the equal nodes only.

    Known limits: torchrun itself can run nodes of different size; a job that is made for it can ignore this rule.
    """
    # Each node of a list of addresses numbers the ranks of all by its own number of processes.
    listed = (group for group in peers(job) if job.setting("hosts", group[0].scope))
    for group in (*groups(job), *listed):
        stated = [(launch, job.value_claims("processes_per_node", launch.scope)) for launch in group]
        stated = [(launch, claims) for launch, claims in stated if claims]
        if len(stated) < 2:
            continue
        subject = join_some([launch.id for launch in group], 1)
        if undecided_verdict := undecided(subject, [claim for _, claims in stated for claim in claims]):
            yield undecided_verdict
            continue
        first = stated[0][1][0]
        ours = set(numbers(job_value(stated[0][1])))
        other = next((c[0] for _, c in stated[1:] if ours and not ours & set(numbers(job_value(c)))), None)
        if other is None:
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(first)} here and {quoted(other)} in {where(other)} start different numbers of ranks on the"
                " nodes of one job.",
                at=first,
                also=((other, "another number"),),
                remedy="Start the same number on every node, or leave out the smaller node.",
            )
    for launch in job.launches:
        slots = [c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)]
        if len(slots) < 2:
            continue
        undecided_verdict = undecided(launch.id, slots, launch)
        yield undecided_verdict or _slots(launch, slots)


def _slots(launch: Launch, slots: Sequence[Claim]) -> Verdict:
    """Whether the hosts of one launch hold equal numbers of ranks."""
    other = next((claim for claim in slots if not set(claim.alternatives) & set(slots[0].alternatives)), None)
    if other is None:
        return passed(launch.id)
    return failed(
        launch.id,
        f"{placed(slots[0])} gives one host of the job {joined(slots[0].alternatives)} slots and another"
        f" {joined(other.alternatives)}: hierarchical collectives and model parallelism need equal nodes, and mixed"
        " machines run at the speed of the slowest.",
        at=slots[0],
        also=((other, "another number"),),
        remedy="Give every host the same number of slots, or leave out the smaller one.",
        severity=Severity.INFO,
    )
