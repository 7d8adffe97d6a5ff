"""Whether the servers of a training run move as much as what they hold lets expect."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.server_plan import plan_servers
from preflight_checks.smoke.server_run import (
    COST,
    FACT,
    PROBES,
    UNCOUNTED,
    ServerRun,
    blocked,
    server_run_of,
    uncounted,
)

#: A server that holds or moves so many times the mean is loaded unevenly (evidence: size-balanced placement reaches
#: 1.05, hashing 1.10 from 50 slices a server on).
UNEVEN = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """What one server moved, which share of all that is, and which share of the parameters it holds.

    `uneven` says that it moved far more than what it holds lets expect.
    """

    index: int
    node: str
    moved: int
    share: float
    due: float
    uneven: bool


def loads_of(run: ServerRun) -> tuple[Load, ...]:
    """The load of each server that came to the end; none where they told no bytes that they hold or moved."""
    moved = [sum(seen.bytes_in + seen.bytes_out for seen in report.seen) for _, report in run.servers]
    held = [report.dense_bytes for _, report in run.servers]
    if not sum(held) or not sum(moved) or uncounted(run):
        return ()
    found: list[Load] = []
    for (node, report), mine, own in zip(run.servers, moved, held, strict=True):
        share, due = mine / sum(moved), own / sum(held)
        uneven = share > UNEVEN * due and share > UNEVEN / len(run.servers)
        found.append(Load(report.index, node, mine, share, due, uneven))
    return tuple(found)


@check(
    "SMK026",
    "server-load-uneven",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("tensorflow/tensorflow#3762", "PaddlePaddle/Paddle#10398"),
)
@drillable("delay", "loss", "double", "flip")
def server_load_uneven(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Servers move as many bytes as what they hold lets expect.

    What it checks: the bytes that each server took in and gave out, against its share of what all of them hold.

    Why it matters: every step waits for the server that moves most. A server that moves much more than its share
    serves somebody else, or the same twice.

    Example: server 0 on node-a moved 62 % of all bytes and holds 33 % of the parameters.

    Fix: see who else talks to the named server; place parameters by size.

    Known limits: the model is a small one of our own; how the job's own parameters are dealt is judged from its files.

    Evidence: tensorflow/tensorflow#3762, PaddlePaddle/Paddle#10398.
    """
    run = server_run_of(job, facts)
    early = blocked(job, fleet, facts, run)
    if early is not None:
        yield early
        return
    if uncounted(run):
        yield not_applicable("load of servers", UNCOUNTED)
        return
    if len(run.servers) < 2:
        yield not_applicable("load of servers", "there is one server")
        return
    loads = loads_of(run)
    if not loads:
        yield unknown("load of servers", "the servers told no bytes that they hold or moved")
        return
    for one in (one for one in loads if one.uneven):
        yield failed(
            f"load of server {one.index} on {one.node}",
            f"server {one.index} on {one.node} moved {one.share:.0%} of all bytes and holds {one.due:.0%} of the "
            "parameters",
            at=Evidence(
                FACT, f"{one.moved} bytes", f"about {one.due:.0%} of {sum(o.moved for o in loads)}", node=one.node
            ),
            nodes=(one.node,),
            remedy=f"See who else talks to {one.node}; place parameters by size.",
        )
    if not any(one.uneven for one in loads):
        yield passed(f"load of servers: {', '.join(f'{one.share:.0%}' for one in loads)} of the bytes moved")
