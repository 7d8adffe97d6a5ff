"""Node ranks that are the same on every node."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.claim import job_value
from preflight.model.job.symbols import Symbol, symbols_in
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import (
    AGENT_LAUNCHERS,
    certainly_one,
    certainly_several,
    joined,
    nodes_spanned,
    quoted,
    why_unresolved,
)
from preflight_rules.rendezvous.identities import backends, evaluated_on_each_node, has_no_address

#: What starts its command on every node.
_STARTERS = frozenset({"srun", "pdsh", "clush"})


@rule(
    "RDV003",
    "node-rank-same-on-every-node",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launcher with a node rank is started on several nodes",
    evidence=(
        ("srun documentation (output environment variables)", "https://slurm.schedmd.com/srun.html"),
        ("expanded too early, the initial rendezvous times out", "pytorch/pytorch#73656"),
    ),
)
def node_rank_same_on_every_node(job: Job) -> Iterator[Verdict]:
    """The batch script expands the node rank itself, so every node gets the same rank.

    What it checks: For a launcher that srun, pdsh or clush starts on several nodes with a static rendezvous, that its
    node rank differs between nodes: not a fixed number, and not SLURM_NODEID or SLURM_PROCID expanded before srun runs.

    Why it matters: In the batch script both variables are 0, so every node claims to be node 0: the ranks collide, or
    all but one wait for the others until rendezvous times out.

    Example: `srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID ...`, where the batch shell expands the variable.

    Fix: Let a shell on the node expand it: `srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`, or use
    `--rdzv_backend=c10d`, which needs no node rank.

    Known limits: With the c10d backend the node rank is ignored, so nothing is reported. A node rank that a script on
    the node computes is not followed.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        starts = _STARTERS.intersection(launch.wrappers)
        if launch.launcher not in AGENT_LAUNCHERS or not starts or not ranks or not because:
            continue
        if has_no_address(job, launch) and ranks[0].strength is Strength.DEFAULT:
            # The missing rendezvous address of such a line is reported first.
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        if why_unresolved((*because, *backend), launch) is not None:
            claim, why = why_unresolved((*because, *backend), launch) or (ranks[0], "")
            yield unknown(launch.id, f"{quoted(claim)} is unknown: {why}", at=claim)
        elif not certainly_several(nodes) or backends(job, launch) - {"static"}:
            yield passed(launch.id)
        else:
            yield _node_rank(job, launch, ranks[0], because[0], joined(numbers(nodes)))


def _starter(launch: Launch) -> str:
    return next(name for name in launch.wrappers if name in _STARTERS)


def _tasks(job: Job, launch: Launch) -> tuple[Claim, ...]:
    return job.setting("tasks_per_node", launch.scope)


def _local_rank(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
    """Report SLURM_LOCALID as node rank: it is 0 on every node, wherever it is expanded."""
    return failed(
        launch.id,
        f"{quoted(rank)} counts the tasks within a node, so it is 0 on every node that srun starts, but "
        f"{quoted(stated)} needs ranks 0 to {int(max(numbers(stated.value))) - 1}, each once.",
        at=rank,
        also=((stated, "needs each rank once"),),
        remedy="Use $SLURM_NODEID, expanded by a shell on the node, or use --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _no_rank(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{launch.launcher} has no node rank and uses 0 on every node that {_starter(launch)} starts, but"
        f" {quoted(stated)} needs ranks 0 to {int(max(numbers(stated.value))) - 1}, each once: all nodes will wait.",
        at=rank,
        also=((stated, "needs each rank once"),),
        remedy="Use --rdzv_backend=c10d --rdzv_endpoint=<first node>:<port>, which needs no rank, or give each node its"
        " rank: srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'.",
        waits_at="rendezvous",
    )


def _node_rank(job: Job, launch: Launch, rank: Claim, stated: Claim, count: str) -> Verdict:
    granted = job.setting("nodes", launch.scope)
    if not granted or not certainly_several(job_value(granted)):
        return unknown(launch.id, f"cannot determine on how many nodes {_starter(launch)} starts it", at=launch)
    if job.setting("single_node_step", launch.scope):
        # `srun -n1 -w "$node" torchrun --node_rank=$i`: one step for each node, each with its own rank.
        return passed(launch.id)
    fixed = numbers(rank.value)
    if rank.strength is Strength.DEFAULT:
        return _no_rank(launch, rank, stated)
    early = bool(symbols_in(rank.value) & {Symbol.NODE_RANK, Symbol.PROCESS_RANK})
    if Symbol.LOCAL_RANK in symbols_in(rank.value) and certainly_one(job_value(_tasks(job, launch))):
        return _local_rank(launch, rank, stated)
    before = rank.span.snippet[: rank.span.column - 1]
    elsewhere = rank.span.line != launch.span.line and bool(set("'\"") & set(before))
    if early and ("\\$" in rank.span.snippet or elsewhere):
        return unknown(launch.id, f"cannot determine where {quoted(rank)} is expanded", at=rank)
    inner = evaluated_on_each_node(launch)
    if early and inner:
        return passed(launch.id)
    if early and inner is None:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} is expanded on the node", at=rank)
    if len(fixed) != 1 and not early:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    if "srun" not in launch.wrappers and not fixed:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    seen = "is expanded by the batch script, where it is 0," if early else f"is {fixed[0]}"
    return failed(
        launch.id,
        f"{quoted(rank)} {seen} on every node that {_starter(launch)} starts, but {quoted(stated)} needs ranks 0 to"
        f" {int(max(numbers(stated.value))) - 1}, each once.",
        at=rank,
        also=((stated, f"{count} nodes"), (launch, "started on each node")),
        remedy="Let a shell on the node expand it (`srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`),"
        " or use --rdzv_backend=c10d, which needs no node rank.",
    )
