"""Checks that the traffic of each server in a training run matches the parameters it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.smoke.injected_fault import may_fail_by_injection
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

#: A server that holds or moves this many times the mean is unevenly loaded (evidence: size-balanced placement reaches
#: 1.05, hashing 1.10 from 50 slices a server on).
UNEVEN = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes that one server moved, and its shares of all bytes and of all parameters.

    `uneven`: it moved far more than its share of the parameters explains.
    """

    index: int
    node: str
    bytes_moved: int
    share: float
    parameter_share: float
    uneven: bool


def loads_of(run: ServerRun) -> tuple[Load, ...]:
    """The load of each server that completed; empty if the servers reported no bytes."""
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
@may_fail_by_injection("delay", "loss", "double", "flip")
def server_load_uneven(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The traffic of each server matches its share of the parameters.

    What it checks: the bytes that each server received and sent, compared with its share of the parameters.

    Why it matters: every step waits for the busiest server. A server that moves much more than its share serves
    another job, or sends data twice.

    Example: server 0 on node-a moved 62 % of all bytes and holds 33 % of the parameters.

    Fix: find other clients of the named server; place parameters by size.

    Known limits: the model is a small one of our own; the placement of the job's own parameters is judged from its
    files.
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
        yield unknown("load of servers", "the servers reported no bytes")
        return
    for load in (load for load in loads if load.uneven):
        yield failed(
            f"load of server {load.index} on {load.node}",
            f"server {load.index} on {load.node} moved {load.share:.0%} of all bytes and holds "
            f"{load.parameter_share:.0%} of the parameters",
            at=Evidence(
                FACT,
                f"{load.bytes_moved} bytes",
                f"about {load.parameter_share:.0%} of {sum(o.bytes_moved for o in loads)}",
                node=load.node,
            ),
            nodes=(load.node,),
            remedy=f"Find other clients of {load.node}, and place parameters by size.",
        )
    if not any(load.uneven for load in loads):
        yield passed(f"load of servers: {', '.join(f'{load.share:.0%}' for load in loads)} of the bytes moved")
