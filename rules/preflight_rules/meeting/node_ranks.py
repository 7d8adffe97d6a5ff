"""The rank that a launcher gives to each node: one that is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Strength
from preflight.job.symbols import Symbol, symbols_in
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.meeting.rendezvous import backends, evaluated_on_each_node, has_no_address
from preflight_rules.reading import (
    AGENT_LAUNCHERS,
    certainly_one,
    certainly_several,
    job_value,
    nodes_spanned,
    numbers,
    quoted,
    spoken,
    why_unresolved,
)


@rule(
    "RDV003",
    "node-rank-same-on-every-node",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://slurm.schedmd.com/srun.html", "pytorch/pytorch#73656"),
)
def node_rank_same_on_every_node(job: Job) -> Iterator[Verdict]:
    """The node rank is expanded by the batch script, so that every node gets the same one.

    What it checks:
        For a launcher that srun starts on several nodes with a static rendezvous, that its node rank differs
        between nodes: not a fixed number, and not SLURM_NODEID or SLURM_PROCID expanded before srun runs.

    Why it matters:
        In the batch script both variables are 0, so every node claims to be node 0: the ranks collide, or all
        but one wait for the others until rendezvous times out.

    Example:
        `srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID ...`, where the batch shell expands the variable.

    Fix:
        Let a shell on the node expand it: `srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`, or use
        `--rdzv_backend=c10d`, which needs no node rank.

    Known limits:
        With the c10d back end the node rank is ignored, so nothing is said. A node rank that a script on the
        node computes is not followed.

    Evidence:
        srun documentation (output environment variables); pytorch/pytorch#73656 (expanded too early, the initial
        rendezvous times out).
    """
    met = False
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        if launch.launcher not in AGENT_LAUNCHERS or "srun" not in launch.wrappers or not ranks or not because:
            continue
        if has_no_address(job, launch) and ranks[0].strength is Strength.DEFAULT:
            # A line that says nothing of the meeting point lacks that first; the address is reported.
            continue
        met = True
        backend = job.setting("rendezvous_backend", launch.scope)
        if why_unresolved((*because, *backend), launch) is not None:
            claim, why = why_unresolved((*because, *backend), launch) or (ranks[0], "")
            yield unknown(launch.id, f"{quoted(claim)} is left open: {why}", at=claim)
        elif not certainly_several(nodes) or backends(job, launch) - {"static"}:
            yield passed(launch.id)
        else:
            yield _node_rank(job, launch, ranks[0], because[0], spoken(numbers(nodes)))
    if not met:
        yield not_applicable(job.name, "srun starts no launcher with a node rank")


def _tasks(job: Job, launch: Launch) -> tuple[Claim, ...]:
    return job.setting("tasks_per_node", launch.scope)


def _local_rank(launch: Launch, rank: Claim, told: Claim) -> Verdict:
    """One task a node has index 0 on every one of them, whoever expands the variable."""
    return failed(
        launch.id,
        f"{quoted(rank)} counts the tasks of one node, so it is 0 on every node that srun starts, but {quoted(told)}"
        f" needs ranks 0 to {int(max(numbers(told.value))) - 1}, each once.",
        at=rank,
        also=((told, "needs each rank once"),),
        remedy="Take $SLURM_NODEID, expanded by a shell on the node, or use --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _no_rank(launch: Launch, rank: Claim, told: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{launch.launcher} is given no node rank and takes 0 on every node that srun starts, but {quoted(told)} needs"
        f" ranks 0 to {int(max(numbers(told.value))) - 1}, each once: all nodes will wait.",
        at=rank,
        also=((told, "needs each rank once"),),
        remedy="Use --rdzv_backend=c10d --rdzv_endpoint=<first node>:<port>, which needs no rank, or give each node its"
        " rank: srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'.",
        waits_at="rendezvous",
    )


def _node_rank(job: Job, launch: Launch, rank: Claim, told: Claim, count: str) -> Verdict:
    granted = job.setting("nodes", launch.scope)
    if not granted or not certainly_several(job_value(granted)):
        return unknown(launch.id, "it cannot be told on how many nodes srun starts this launcher", at=launch)
    if job.setting("single_node_step", launch.scope):
        # `srun -n1 -w "$node" torchrun --node_rank=$i`: one step for each node, with a rank of its own.
        return passed(launch.id)
    fixed = numbers(rank.value)
    if rank.strength is Strength.DEFAULT:
        return _no_rank(launch, rank, told)
    early = bool(symbols_in(rank.value) & {Symbol.NODE_RANK, Symbol.PROCESS_RANK})
    if Symbol.LOCAL_RANK in symbols_in(rank.value) and certainly_one(job_value(_tasks(job, launch))):
        return _local_rank(launch, rank, told)
    before = rank.span.snippet[: rank.span.column - 1]
    elsewhere = rank.span.line != launch.span.line and bool(set("'\"") & set(before))
    if early and ("\\$" in rank.span.snippet or elsewhere):
        return unknown(launch.id, f"it cannot be told who expands {quoted(rank)}", at=rank)
    inner = evaluated_on_each_node(launch)
    if early and inner:
        return passed(launch.id)
    if early and inner is None:
        return unknown(launch.id, f"it cannot be told whether {quoted(rank)} is expanded on the node", at=rank)
    if len(fixed) != 1 and not early:
        return unknown(launch.id, f"it cannot be told whether {quoted(rank)} differs between nodes", at=rank)
    seen = "is expanded by the batch script, where it is 0," if early else f"is {fixed[0]}"
    return failed(
        launch.id,
        f"{quoted(rank)} {seen} on every node that srun starts, but {quoted(told)} needs ranks 0 to"
        f" {int(max(numbers(told.value))) - 1}, each once.",
        at=rank,
        also=((told, f"{count} nodes"), (launch, "started on each node")),
        remedy="Let a shell on the node expand it (`srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`),"
        " or use --rdzv_backend=c10d, which needs no node rank.",
    )
