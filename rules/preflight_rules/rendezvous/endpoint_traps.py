"""Rendezvous addresses and ports that differ between nodes at run time, or lie outside the job."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.symbols import Symbol, symbols_in
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_several,
    joined,
    nodes_spanned,
    on_first_node_only,
    quoted,
    undecided,
)
from preflight_rules.rendezvous.identities import address_in_force, evaluated_on_each_node, has_no_address

_PORTS = ("master_port", "rendezvous_endpoint", "rendezvous_id")


@rule(
    "RDV020",
    "rendezvous-on-submission-host",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch uses the submission host as rendezvous",
    evidence=(
        ("sbatch documentation (output environment variables)", "https://slurm.schedmd.com/sbatch.html"),
        "mlc-ai/pith-train#47",
        "pytorch/pytorch#79388",
    ),
)
def rendezvous_on_submission_host(job: Job) -> Iterator[Verdict]:
    """The rendezvous address is the host that the job was submitted from.

    What it checks: The rendezvous or master address is not `$SLURM_SUBMIT_HOST`, `$PBS_O_HOST` or `$LSB_SUB_HOST`.

    Why it matters: That is the login node. No rank runs there, so nothing listens, and all ranks wait until the
    rendezvous times out.

    Example: `srun torchrun --nnodes=4 --rdzv_endpoint=$SLURM_SUBMIT_HOST:29500 train.py`.

    Fix: Use the first host of the allocation, in Slurm `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: Where jobs are submitted from inside an allocation the submitting host may be a node of the job, so
    this is a warning.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        addresses = [c for c in address_in_force(job, launch) if Symbol.SUBMISSION_HOST in symbols_in(c.value)]
        if not addresses:
            continue
        undecided_verdict = undecided(launch.id, because, launch, quantity="nodes")
        if undecided_verdict is not None or not because:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is {Symbol.SUBMISSION_HOST.value}, usually a login node where no rank runs:"
                " nothing will listen there.",
                at=addresses[0],
                also=((because[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Give the first host of the allocation; in a Slurm job:"
                ' $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1).',
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)


@rule(
    "RDV021",
    "rendezvous-port-random-on-each-node",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch draws a random port",
    evidence=(
        (
            "torchrun documentation (all nodes need the same endpoint)",
            "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ),
        "hiyouga/LlamaFactory#7326",
    ),
)
def rendezvous_port_random_on_each_node(job: Job) -> Iterator[Verdict]:
    """Every node chooses its own random port for the common rendezvous.

    What it checks: If a shell runs on each node, its master port, endpoint and id of the rendezvous do not come from
    `$RANDOM` or the time.

    Why it matters: The nodes dial different ports. Only the master's own ranks find each other; the rest wait until the
    rendezvous times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --master_port=$((20000 + RANDOM % 1000)) ...'`.

    Fix: Choose the port once, in the batch script before srun, and export it; or derive it from the job id, which is
    the same everywhere: `$((20000 + SLURM_JOB_ID % 10000))`.

    Known limits: A script that is started manually on each node (it takes its node rank from the caller) gives a
    warning: a wrapper around it may set the port.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        random_port = _random_port(job, launch)
        if random_port is None or launch.launcher not in AGENT_LAUNCHERS:
            continue
        undecided_verdict = undecided(launch.id, because, launch, quantity="nodes")
        if undecided_verdict is not None or not because:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif not certainly_several(nodes):
            yield passed(launch.id)
        else:
            yield _on_each_node(job, launch, random_port, joined(numbers(nodes)))


def _random_port(job: Job, launch: Launch) -> Claim | None:
    """The claim that takes the rendezvous port from a random number or the time."""
    for quantity in _PORTS:
        for claim in job.setting(quantity, launch.scope):
            if symbols_in(claim.value) & {Symbol.RANDOM_NUMBER, Symbol.TIME}:
                return claim
    return None


def _on_each_node(job: Job, launch: Launch, random_port: Claim, count: str) -> Verdict:
    inner = evaluated_on_each_node(launch)
    ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
    by_hand = not SPREADING_WRAPPERS.intersection(launch.wrappers) and bool(ranks)
    if inner is None and not by_hand:
        return unknown(
            launch.id, f"cannot determine whether {quoted(random_port)} is drawn once or on each node", at=random_port
        )
    if inner is False:
        return passed(launch.id)
    return failed(
        launch.id,
        f"{quoted(random_port)} is drawn on each of the {count} nodes, so each of them uses a different"
        f" {'id' if random_port.quantity == 'rendezvous_id' else 'port'}.",
        at=random_port,
        remedy="Draw it once before the nodes are started, or derive it from the job id.",
        severity=Severity.WARNING if by_hand else None,
        waits_at="rendezvous",
    )


@rule(
    "RDV022",
    "node-rank-not-given",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch for several nodes depends on its node rank",
    evidence=(
        (
            "torchrun documentation (the default of --node-rank)",
            "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ),
        "pytorch/pytorch#52848",
    ),
)
def node_rank_not_given(job: Job) -> Iterator[Verdict]:
    """A torchrun line for several nodes with the static backend gives no node rank.

    What it checks: A line that is started manually (not by srun or mpirun) for more than one node, with `--master_addr`
    and no other backend, gives `--node_rank`, or another line of the job does for the other nodes.

    Why it matters: torchrun then assumes rank 0 on every node. Each node opens its own store and waits for the others.

    Example: `torchrun --nnodes=2 --nproc_per_node=8 --master_addr=10.0.0.1 train.py`, run on both nodes.

    Fix: Pass `--node_rank` to the script (`--node_rank=$1`), or use `--rdzv_backend=c10d
    --rdzv_endpoint=10.0.0.1:29500`, which needs no rank.

    Known limits: The line is correct if it is meant only for node 0 and the lines of the other nodes are elsewhere.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        static = [c for c in job.setting("rendezvous_backend", launch.scope) if texts(c.value) == ("static",)]
        if launch.launcher not in AGENT_LAUNCHERS or not static or not because or not ranks:
            continue
        if "srun" in launch.wrappers or not certainly_several(nodes) or has_no_address(job, launch):
            continue
        if any(on_first_node_only(claim, launch) for claim in job.setting("nodes", launch.scope)):
            # Nothing starts it on a second node, which another rule reports.
            continue
        undecided_verdict = undecided(launch.id, (*because, *ranks), launch, quantity="nodes")
        if undecided_verdict is not None:
            yield undecided_verdict
        elif ranks[0].strength is Strength.DEFAULT and not _another_launch_has_ranks(job, launch):
            yield failed(
                launch.id,
                f"{quoted(because[0])} needs ranks 0 to {max(numbers(nodes)) - 1}, each once, but the rank of"
                f" this node is not given: {launch.launcher} uses 0.",
                at=ranks[0],
                also=((because[0], f"{joined(numbers(nodes))} nodes"),),
                remedy=f"Give --{'machine' if launch.launcher == 'accelerate' else 'node'}_rank, a different one on"
                " each node, or use --rdzv_backend=c10d, which needs none.",
            )
        else:
            yield passed(launch.id)


def _another_launch_has_ranks(job: Job, launch: Launch) -> bool:
    """Whether another line starts the same program with a node rank above 0."""
    return any(
        claim.strength > Strength.DEFAULT and numbers(claim.value) != (0,)
        for other in job.launches
        if other.id != launch.id and other.program == launch.program
        for claim in job.setting("node_rank", other.scope)
    )
