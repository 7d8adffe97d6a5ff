"""Nodes of one job that are started with different numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Confidence, Severity
from preflight_rules.meeting.siblings import groups
from preflight_rules.reading import deciding, job_value, numbers, quoted, undecided, where


@rule(
    "WLD003",
    "processes-differ-between-nodes",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("huggingface/accelerate#2335", "https://docs.pytorch.org/docs/stable/elastic/run.html"),
)
def processes_differ_between_nodes(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job start different numbers of ranks.

    What it checks:
        Launch lines of one program that carry different node ranks start as many processes each.

    Why it matters:
        Launchers and frameworks take the number of one node for that of all: ranks are numbered twice or the
        world waits for ranks that nobody starts, and hierarchical collectives and model parallelism need equal
        nodes.

    Example:
        `--nproc_per_node=8` in node0.sh and `--nproc_per_node=4` in node1.sh.

    Fix:
        Start as many processes on every node, or train on the equal nodes only.

    Known limits:
        torchrun itself can run nodes of different size; a job that is made for it can ignore this rule.

    Evidence:
        huggingface/accelerate#2335 (two machines with different num_processes hang); torchrun documentation (each
        node of the same size is assumed by its examples).
    """
    met = False
    for group in groups(job):
        said = [(launch, deciding(job, "processes_per_node", launch.scope)) for launch in group]
        said = [(launch, claims) for launch, claims in said if claims]
        if len(said) < 2:
            continue
        met = True
        subject = f"{group[0].id} and {len(group) - 1} more"
        open_end = undecided(subject, [claim for _, claims in said for claim in claims])
        if open_end is not None:
            yield open_end
            continue
        first = said[0][1][0]
        ours = set(numbers(job_value(said[0][1])))
        other = next((c[0] for _, c in said[1:] if ours and not ours & set(numbers(job_value(c)))), None)
        if other is None:
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(first)} here and {quoted(other)} in {where(other)} start different numbers of ranks on the"
                " nodes of one job.",
                at=first,
                also=((other, "another number"),),
                remedy="Start the same number on every node, or leave the smaller node out.",
            )
    if not met:
        yield not_applicable(job.name, "no two launch lines start nodes of one group")
