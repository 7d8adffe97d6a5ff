"""Whether the nodes' clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, NodeRecord
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, unseen
from preflight_checks.probes.clock import clock

#: From here logs and file times of different nodes contradict each other (make, resuming, caches).
WARN_S = 1.0
#: No time daemon lets a clock stray so far: nothing keeps it, and it goes on straying. Signed requests, tokens and
#: certificates that were just made are refused from some such distance on (munge and Kerberos: five minutes).
GRAVE_S = 30.0
#: torchrun's dynamic rendezvous takes a node for dead whose last sign of life is older than three intervals of five
#: seconds, and compares the clock of the one node with that of the other (torch/distributed/elastic/rendezvous/
#: dynamic_rendezvous.py, keep_alive_interval and keep_alive_max_attempt).
DEAD_S = 15.0
DYNAMIC = ("c10d", "etcd-v2")


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from ()


@check(
    "CLK001",
    "clock-spread",
    plan=_plan,
    probes=(),
    cost="nothing: the agent's own messages carry its time",
    severity=Severity.ERROR,
    evidence=("awslabs/awsome-distributed-ai#180", "pytorch/pytorch#56538"),
)
def clock_spread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clocks of all nodes agree to within a second.

    What it checks: each node's clock offset as its agent's messages show it, with half the round trip as its
    uncertainty; only what exceeds that counts. More than a second is a warning, more than 30 s an error, and so are
    more than 15 s where torchrun meets by c10d.

    Why it matters: time-stamps of logs and checkpoints cannot be put in order, caches rebuild for ever, and far
    off, certificates, tokens and leases are refused. torchrun's c10d rendezvous drops a node as dead whose clock is
    15 s behind that of another.

    Example: node3 is five minutes ahead, because its time daemon is not running.

    Fix: start chronyd (or ntpd) on the node.

    Known limits: millisecond differences, which matter to traces, cannot be seen this way.

    Evidence: awslabs/awsome-distributed-ai#180, pytorch/pytorch#56538.
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
    # Of two clocks the one that agrees with that of whoever runs the check is taken for the right one.
    centre = median(offsets.values()) if len(offsets) > 2 else min(offsets.values(), key=abs)
    far = {node: offset - centre for node, offset in offsets.items() if abs(offset - centre) - doubt[node] > WARN_S}
    if not far:
        yield passed(f"clocks of {len(offsets)} nodes")
        return
    worst = max(far, key=lambda node: abs(far[node]))
    certain = abs(far[worst]) - doubt[worst]
    dynamic = next((claim for claim in job.about("rendezvous_backend") if set(claim.alternatives) & set(DYNAMIC)), None)
    drops = dynamic is not None and certain > DEAD_S
    grave = certain > GRAVE_S
    said = fold(f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in far.items())
    why = " (certificates, tokens and leases may be refused)" if grave else ""
    if drops and dynamic is not None:
        why = f" (the rendezvous of {dynamic.spelling or 'torchrun'} takes a node for dead that is {DEAD_S:g} s behind)"
    yield failed(
        "clocks",
        f"clocks differ: {said} of the middle of all nodes{why}",
        at=Evidence(
            "clock offset",
            f"{far[worst]:+.1f} s, give or take {doubt[worst]:.2f} s",
            f"within {WARN_S:g} s",
            "date +%s.%N",
            worst,
        ),
        also=(dynamic,) if drops and dynamic is not None else (),
        nodes=tuple(far),
        remedy=f"Start the time daemon on {fold(far)}: `systemctl status chronyd`, `chronyc tracking`; "
        "`chronyc makestep` sets its clock at once.",
        run=(root_command("chronyc", "makestep", on=far),),
        severity=None if grave or drops else Severity.WARNING,
        confidence=None if grave or drops else Confidence.MEDIUM,
    )


def _uncertainty(record: NodeRecord) -> float:
    """Half the round trip: a message's way back and forth need not take equally long."""
    return (record.round_trip_s or 0.0) / 2


def _plan_kept(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) > 1:
        for node in fleet.reached:
            yield Request(probe_name(clock), node.name)


@check(
    "CLK002",
    "clock-not-kept",
    plan=_plan_kept,
    probes=(clock,),
    cost="asks the kernel for the state of the clock, and chronyd where it runs, for at most 1.5 s",
    without_root="nothing; containers often may not ask the kernel",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://man7.org/linux/man-pages/man2/adjtimex.2.html", "awslabs/awsome-distributed-ai#180"),
)
def clock_not_kept(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A time daemon keeps the clock of every node, where it keeps those of the others.

    What it checks: whether the kernel holds its clock for synchronised (adjtimex), and what chronyd says of it.

    Why it matters: a clock that nobody keeps is right when the job starts and wrong by seconds a week later; the
    time-outs, leases and logs that need it fail in the middle of a run.

    Example: chronyd of node3 has not reached its servers since the last reboot.

    Fix: start the time daemon, or let it reach its servers.

    Known limits: where no node is synchronised it is information: some clouds keep the clock from below.

    Evidence: adjtimex(2); awslabs/awsome-distributed-ai#180.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("time daemons", "the job has one node")
        return
    have = facts.observed(clock)
    yield from unseen(facts, clock, "time daemons")
    kept = {node: value for node, value in have.items() if value.synchronised}
    free = {node: value for node, value in have.items() if value.synchronised is False}
    blind: dict[str, list[str]] = {}
    for node, value in have.items():
        if value.synchronised is None:
            blind.setdefault(value.problem, []).append(node)
    for reason, nodes in blind.items():
        yield unknown(f"time daemons on {fold(nodes)}", f"the kernel does not say whether the clock is kept: {reason}")
    if kept and not free:
        yield passed(f"the clocks of {len(kept)} nodes are kept")
    if not free:
        return
    node, value = next(iter(free.items()))
    runs = f"{', '.join(value.daemons)} runs there" if value.daemons else "no time daemon is seen there"
    says = f" and says: {value.daemon_says}" if value.daemon_says else ""
    others = f", as {fold(kept, 4)} {'are' if len(kept) > 1 else 'is'}" if kept else ""
    yield failed(
        "time daemons",
        f"the clock of {fold(free)} is not synchronised{others} ({node}: {runs}{says})",
        at=Evidence("state of the clock", "not synchronised", "synchronised", "timedatectl; chronyc tracking", node),
        nodes=tuple(free),
        remedy=f"Start a time daemon on {fold(free)} and let it reach its servers: `chronyc sources`.",
        severity=None if len(kept) > len(free) else Severity.INFO,
    )
