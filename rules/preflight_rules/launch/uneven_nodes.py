"""Nodes of one job that start different numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import joined, placed, quoted, undecided, where
from preflight_rules.rendezvous.siblings import groups, peers


@rule(
    "WLD003",
    "processes-differ-between-nodes",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launch lines start nodes of one job",
    evidence=(
        ("two machines with different num_processes hang", "huggingface/accelerate#2335"),
        (
            "torchrun documentation (each node of the same size is assumed by its examples)",
            "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ),
    ),
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
        subject = f"{group[0].id} and {len(group) - 1} more"
        undecided_verdict = undecided(subject, [claim for _, claims in stated for claim in claims])
        if undecided_verdict is not None:
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
