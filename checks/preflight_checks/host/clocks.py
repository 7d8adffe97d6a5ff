"""Checks that the clocks of all nodes agree and are synchronized."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, NodeRecord
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.plans import known_facts, no_requests, on_every_node, several_nodes
from preflight_checks.probes.clock import clock
from preflight_checks.requirements import fold, nodes_share_machine

#: Above this difference, logs and file times of different nodes contradict each other (make, resuming, caches).
WARN_S = 1.0
#: No time daemon lets a clock drift this far: the clock is unsynchronized and keeps drifting. Signed requests, tokens
#: and new certificates are refused at about this difference (munge and Kerberos: five minutes).
ERROR_S = 30.0
#: torchrun's dynamic rendezvous declares a node dead if its last heartbeat is older than three intervals of five
#: seconds, and compares the clocks of two different nodes (torch/distributed/elastic/rendezvous/
#: dynamic_rendezvous.py, keep_alive_interval and keep_alive_max_attempt).
HEARTBEAT_LIMIT_S = 15.0
C10D_BACKENDS = ("c10d", "etcd-v2")


@check(
    "CLK001",
    "clock-spread",
    plan=no_requests,
    cost="nothing: the agent's own messages carry its time",
    severity=Severity.ERROR,
    evidence=("awslabs/awsome-distributed-ai#180", "pytorch/pytorch#56538"),
)
def clock_spread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clocks of all nodes agree to within a second.

    What it checks: each node's clock offset, taken from its agent's messages, beyond an uncertainty of half the round
    trip. More than a second is a warning; more than 30 s is an error, as is more than 15 s with torchrun's c10d
    rendezvous.

    Why it matters: timestamps of logs and checkpoints cannot be ordered, and caches rebuild forever. At larger
    differences certificates, tokens and leases are refused, and torchrun's c10d rendezvous drops a node as dead if its
    clock is 15 s behind.

    Example: node3 is five minutes ahead, because its time daemon is not running.

    Fix: start chronyd (or ntpd) on the node.

    Known limits: differences of milliseconds, which matter to traces, are not detected.
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
    # Of two clocks, the one that agrees with the machine that runs preflight is assumed to be right.
    centre = median(offsets.values()) if len(offsets) > 2 else min(offsets.values(), key=abs)
    far = {node: offset - centre for node, offset in offsets.items() if abs(offset - centre) - doubt[node] > WARN_S}
    if not far:
        yield passed(f"clocks of {len(offsets)} nodes")
        return
    worst = max(far, key=lambda node: abs(far[node]))
    certain = abs(far[worst]) - doubt[worst]
    dynamic = next(
        (claim for claim in job.about("rendezvous_backend") if set(claim.alternatives) & set(C10D_BACKENDS)), None
    )
    drops = dynamic is not None and certain > HEARTBEAT_LIMIT_S
    grave = certain > ERROR_S
    text = fold(f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in far.items())
    reason = " (certificates, tokens and leases may be rejected)" if grave else ""
    if drops and dynamic is not None:
        late = f"{HEARTBEAT_LIMIT_S:g} s behind"
        reason = f" (the rendezvous of {dynamic.spelling or 'torchrun'} declares a node that is {late} dead)"
    yield failed(
        "clocks",
        f"clocks differ: {text} from the median of all nodes{reason}",
        at=Evidence(
            "clock offset", f"{far[worst]:+.1f} s ± {doubt[worst]:.2f} s", f"within {WARN_S:g} s", "date +%s.%N", worst
        ),
        also=(dynamic,) if drops and dynamic is not None else (),
        nodes=tuple(far),
        remedy=f"Start the time daemon on {fold(far)}: `systemctl status chronyd`, `chronyc tracking`; "
        "`chronyc makestep` sets its clock at once.",
        run=(root_command("chronyc", "makestep", on=far),),
        certain=grave or drops,
    )


def _uncertainty(record: NodeRecord) -> float:
    """Half the round trip, because the two directions may take unequal times."""
    return (record.round_trip_s or 0.0) / 2


@check(
    "CLK002",
    "clock-not-kept",
    plan=on_every_node(clock, when=several_nodes),
    cost="queries the kernel for the state of the clock, and chronyd if it runs; at most 1.5 s",
    without_root="nothing, but containers often may not query the kernel",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("adjtimex(2)", "https://man7.org/linux/man-pages/man2/adjtimex.2.html"),
        "awslabs/awsome-distributed-ai#180",
    ),
)
def clock_not_kept(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clock of every node is synchronized, if those of the others are.

    What it checks: whether the kernel considers its clock synchronized (adjtimex), and the status of chronyd.

    Why it matters: an unsynchronized clock is right when the job starts and wrong by seconds a week later; timeouts,
    leases and logs then fail in the middle of a run.

    Example: chronyd of node3 has not reached its servers since the last reboot.

    Fix: start the time daemon, or let it reach its servers.

    Known limits: if no node is synchronized, this is only information: some clouds synchronize the clock in the
    hypervisor.
    """
    if len(fleet.nodes) < 2:
        yield not_applicable("time daemons", "the job has one node")
        return
    if nodes_share_machine(fleet):
        yield not_applicable("time daemons", "the nodes are one machine, with one clock")
        return
    observed = yield from known_facts(facts, clock, "time daemons")
    kept = {node: value for node, value in observed.items() if value.synchronised}
    free = {node: value for node, value in observed.items() if value.synchronised is False}
    blind = grouped((value.problem, node) for node, value in observed.items() if value.synchronised is None)
    for reason, nodes in blind.items():
        yield unknown(
            f"time daemons on {fold(nodes)}", f"the kernel does not report whether the clock is synchronized: {reason}"
        )
    if kept and not free:
        yield passed(f"the clocks of {len(kept)} nodes are synchronized")
    if not free:
        return
    node, value = next(iter(free.items()))
    runs = f"{', '.join(value.daemons)} runs there" if value.daemons else "no time daemon was found there"
    daemon = f" and reports: {value.daemon_says}" if value.daemon_says else ""
    others = f", as {fold(kept, 4)} {'are' if len(kept) > 1 else 'is'}" if kept else ""
    yield failed(
        "time daemons",
        f"the clock of {fold(free)} is not synchronized{others} ({node}: {runs}{daemon})",
        at=Evidence("state of the clock", "not synchronised", "synchronised", "timedatectl; chronyc tracking", node),
        nodes=tuple(free),
        remedy=f"Start a time daemon on {fold(free)} and make sure that it reaches its servers: `chronyc sources`.",
        severity=None if len(kept) > len(free) else Severity.INFO,
    )
