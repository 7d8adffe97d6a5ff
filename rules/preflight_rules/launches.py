"""Launches and the scripts that they start: which command starts the ranks, on how many nodes, how many ranks, and
whether a script runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Job,
    Launch,
    Scope,
    Span,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
)
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, passed, unknown
from preflight.plugins.questions import each_claim

#: Launchers that start one agent on each node, which then starts the ranks of that node.
AGENT_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "llamafactory-cli", "paddle", "torch.distributed.launch", "composer", "fabric"}
)
#: Commands that start their command once on every node or task of an allocation.
SPREADING_WRAPPERS = frozenset({"srun", "mpirun", "mpiexec", "pdsh", "clush", "horovodrun"})
#: Schedulers whose headers are read: the source of their claims, their name, and a command that runs on every node.
SCHEDULERS = {
    "slurm": ("Slurm", "srun --ntasks-per-node=1"),
    "pbs": ("PBS", "mpiexec --ppn 1"),
    "lsf": ("LSF", "blaunch"),
    "cobalt": ("Cobalt", "mpiexec --ppn 1"),
    "flux": ("Flux", "flux run --tasks-per-node=1"),
    "sge": ("Grid Engine", "mpirun --npernode 1"),
}
#: Launchers that start processes on the other nodes themselves.
REACHING_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "deepspeed", "horovodrun", "colossalai", "torchx"})
#: A word in place of a number that is not known yet.
_PLACEHOLDER = re.compile(r"<.*|\{.*\}|\[.*\]|[A-Z][A-Z0-9_]*|[a-z]+(?:_[a-z]+)+|x+|\?+|\.\.\.|([#@%])\w+\1")


def is_placeholder(word: str) -> bool:
    """Return whether a word is a placeholder for a number: `<n>`, `{rank}`, `N`, `NUM_NODES`, `your_nodes`, `xx`."""
    return _PLACEHOLDER.fullmatch(word) is not None


def starting_file(launch: Launch) -> str:
    """Return the script that the user starts, which may start the one with the launch line."""
    return place_started(launch).path


def is_same_line_again(first: Launch, second: Launch) -> bool:
    """Return whether two launches are one background line of a script that is started twice.

    The line runs in the background of each start, so the two starts of the script need not overlap.
    """
    return first.span == second.span and first.span.snippet.rstrip().endswith("&")


def place_started(launch: Launch) -> Span:
    """Return the span where the user starts a launch: the call of its script or function, or else the launch line."""
    return launch.started_at[0] if launch.started_at else launch.span


def waited_between(job: Job, first: Launch, second: Launch) -> bool:
    """Return whether the script waits for the first of two background launches before it starts the second.

    A loop is unrolled: a `wait` at the same depth as a start in a loop belongs to each iteration.
    """
    start, next_start = place_started(first), place_started(second)
    waits = [
        claim.span for claim in job.about("background_awaited") if claim.span.path == start.path and not claim.condition
    ]
    starts = [place_started(launch) for launch in job.launches]
    launch_ids = [launch.id for launch in job.launches]
    starts_between = starts[launch_ids.index(first.id) + 1 : launch_ids.index(second.id)]
    if start == next_start or start > next_start or start in starts_between or next_start in starts_between:
        return any(wait.column == next_start.column > 1 and wait > min(start, next_start) for wait in waits)
    return any(start < wait < next_start for wait in waits)


def nodes_spanned(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """Return the number of nodes in the rank group of one launch, and the claims that give it.

    The launcher's own number (`--nnodes`) takes precedence over the scheduler's grant, because a group never spans more
    nodes. A plain `python` line runs on one node, regardless of the grant.
    """
    required_claims = job.requirement_claims("nodes", launch.scope)
    if required_claims:
        return job_value(required_claims), required_claims
    if launch.launcher in REACHING_LAUNCHERS or SPREADING_WRAPPERS.intersection(launch.wrappers):
        claims = job.setting("nodes", launch.scope)
        if claims:
            return job_value(claims), claims
    own_claims = tuple(c for c in job.setting("nodes", launch.scope) if c.scope.launch == launch.id)
    if own_claims:
        return job_value(own_claims), own_claims
    return Unresolved("the number of nodes is not given"), ()


def certainly_several(value: Value) -> bool:
    """Return whether all alternatives are greater than one."""
    counts = numbers(value)
    return bool(counts) and all(number > 1 for number in counts)


def certainly_one(value: Value) -> bool:
    """Return whether all alternatives are one."""
    counts = numbers(value)
    return bool(counts) and all(number == 1 for number in counts)


def ranks_started(job: Job, scope: Scope) -> tuple[Value, tuple[Claim, ...]]:
    """Return the number of ranks of the whole launch, and the claims that it is computed from.

    This is the world size if it is set, otherwise nodes x processes per node.
    """
    world_sizes = job.setting("world_size", scope)
    if world_sizes:
        return _positive_count(job_value(world_sizes)), roots(world_sizes)
    nodes = job.requirement_claims("nodes", scope) or job.setting("nodes", scope)
    processes = job.setting("processes_per_node", scope)
    if not nodes or not processes:
        return Unresolved("the number of ranks is not given"), (*nodes, *processes)
    rank_count = lift(lambda a, b: int(a) * int(b), as_int(job_value(nodes)), as_int(job_value(processes)))
    return _positive_count(rank_count), (*nodes, *processes)


def _positive_count(count: Value) -> Value:
    """Return the count, or an unresolved value if it may be zero or negative."""
    if any(isinstance(alternative, int | float) and alternative < 1 for alternative in alternatives(count)):
        return Unresolved("the number of ranks is not positive")
    return count


def roots(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims that are written in files. A derived claim is replaced by its sources."""
    root_claims: list[Claim] = []
    for claim in claims:
        is_derived = claim.because and claim.source in ("derived", "slurm")
        root_claims.extend(roots(claim.because) if is_derived else (claim,))
    return distinct(root_claims)


def on_first_node_only(claim: Claim, launch: Launch) -> bool:
    """Return whether a claim shows that the batch script runs this launch directly, and so only on the first node."""
    return claim.source in SCHEDULERS and claim.scope.launch == launch.id and "srun" not in launch.wrappers


# What rules about training scripts need: whether a script runs, and on how many nodes and ranks.


def runs_program(job: Job) -> bool:
    """Return whether the job runs a launch, or a script with a main program.

    A library module is judged through the scripts that use it, not on its own.
    """
    return bool(job.launches or job.about("entry_point"))


def started_files(job: Job) -> frozenset[str]:
    """Return the scripts that launches start, without the modules that they import."""
    return frozenset(
        (*(launch.program for launch in job.launches), *(claim.span.path for claim in job.about("entry_point")))
    )


def subject_claims(job: Job, quantity: str) -> Iterator[tuple[str, Claim]]:
    """Return the claims about a quantity, one per location, each with its subject."""
    return ((subject, claim) for subject, _, _, claim in each_claim(job, quantity))


def launches_of(job: Job, claim: Claim) -> Iterator[Launch]:
    """Yield the launches in which a claim holds."""
    for launch in job.launches:
        if claim.scope.covers(launch.scope):
            yield launch


def nodes_of(job: Job, launch: Launch) -> Value:
    """Return the number of nodes of a launch; a plain `python` line runs on one."""
    value, claims = nodes_spanned(job, launch)
    if claims or launch.wrappers:
        return value
    return Unresolved("the number of nodes is not given")


def definitely_on_one_node(job: Job, claim: Claim) -> bool:
    """Return whether every launch of a script runs on one node."""
    node_counts = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    return bool(node_counts) and all(certainly_one(value) for value in node_counts)


def on_several_nodes(job: Job, claim: Claim) -> int:
    """Return the number of nodes on which a launch certainly runs the script, if more than one; otherwise 0."""
    counts = [nodes_of(job, launch) for launch in launches_of(job, claim)]
    multi_node_counts = [min(numbers(value)) for value in counts if certainly_several(value)]
    return max(multi_node_counts, default=0)


def definitely_one_rank(job: Job, claim: Claim) -> bool:
    """Return whether every launch of a script starts one rank."""
    scopes = [launch.scope for launch in launches_of(job, claim)] or [WHOLE_JOB]
    return all(certainly_one(ranks_started(job, scope)[0]) for scope in scopes)


def not_on_several_ranks(
    job: Job, subject: str, claim: Claim, reason: str = "no launch runs this script"
) -> Verdict | None:
    """Return the verdict on a fault that needs several ranks: passed on one rank, unknown if nothing runs the script.

    `reason` explains the unknown verdict. None if several ranks may run the script.
    """
    if definitely_one_rank(job, claim):
        return passed(subject)
    return None if runs_program(job) else unknown(subject, reason, at=claim)
