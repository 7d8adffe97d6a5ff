"""Whether the nodes' clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, NodeRecord
from preflight.request import Request
from preflight_checks.demands import fold

#: From here logs and file times of different nodes contradict each other (make, resuming, caches).
WARN_S = 1.0
#: From here token and certificate checks and rendezvous leases start to fail.
GRAVE_S = 30.0


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from ()


@check(
    "CLK001",
    "clock-spread",
    plan=_plan,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("awslabs/awsome-distributed-ai#180",),
)
def clock_spread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clocks of all nodes agree to within a second.

    What it checks: each node's clock offset as its agent's messages show it, with half the round trip as its
    uncertainty; only what exceeds that counts.

    Why it matters: time-stamps of logs and checkpoints cannot be put in order, caches rebuild for ever, and far
    off, certificates and leases are refused.

    Example: node3 is five minutes ahead, because its time daemon is not running.

    Fix: start chronyd (or ntpd) on the node.

    Known limits: millisecond differences, which matter to traces, cannot be seen this way.

    Evidence: awslabs/awsome-distributed-ai#180.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("clocks", "the job has one node")
        return
    offsets: dict[str, float] = {}
    doubt: dict[str, float] = {}
    for record in fleet.records:
        if record.problem:
            continue
        if record.clock_offset_s is None:
            yield unknown(record.node.name, "its clock was not compared")
        else:
            offsets[record.node.name] = record.clock_offset_s
            doubt[record.node.name] = _uncertainty(record)
    if len(offsets) < 2:
        return
    centre = median(offsets.values())
    far = {node: offset - centre for node, offset in offsets.items() if abs(offset - centre) - doubt[node] > WARN_S}
    if not far:
        yield passed(f"clocks of {len(offsets)} nodes")
        return
    worst = max(far, key=lambda node: abs(far[node]))
    grave = " (certificates and leases may be refused)" if abs(far[worst]) > GRAVE_S else ""
    said = fold(f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in far.items())
    yield failed(
        "clocks",
        f"clocks differ: {said} of the middle of all nodes{grave}",
        at=Evidence(
            "clock offset",
            f"{far[worst]:+.1f} s, give or take {doubt[worst]:.2f} s",
            f"within {WARN_S:g} s",
            "date +%s.%N",
            worst,
        ),
        nodes=tuple(far),
        remedy=f"Start the time daemon on {fold(far)}: `systemctl status chronyd`, `chronyc tracking`.",
    )


def _uncertainty(record: NodeRecord) -> float:
    """Half the round trip: a message's way back and forth need not take equally long."""
    return (record.round_trip_s or 0.0) / 2
