"""Checks the traffic of each server, and how long a step of the job would communicate with its servers."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.comparison import size
from preflight_checks.links.fleet_comparison import format_rate, format_time, slowest_direction
from preflight_checks.plans import given
from preflight_checks.probes.server_place import server_place
from preflight_checks.requirements import fold, is_multi_node
from preflight_checks.smoke.ranks import may_fail_by_injection
from preflight_checks.smoke.server_run import (
    FACT,
    JobShape,
    ServerRun,
    complete_server_run,
    processes,
    server_check,
    shape_of,
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


@server_check("SMK026", "server-load-uneven", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@may_fail_by_injection("delay", "loss", "double", "flip")
@given(functools.partial(complete_server_run, counted="load of servers"))
def server_load_uneven(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """The traffic of each server matches its share of the parameters, and none keeps all workers waiting.

    What it checks: the bytes that each server received and sent, compared with its share of the parameters; and how
    long workers waited for its replies, without the time in which it waited for other workers.

    Why it matters: every step waits for the busiest server. A server that moves much more than its share serves
    another job, or sends data twice. One that answers late delays every worker.

    Example: server 0 on node-a moved 62 % of all bytes and holds 33 % of the parameters.

    Fix: find other clients of the named server, and what else runs on its node; place parameters by size.

    Known limits: the model is a small one of our own; the placement of the job's own parameters is judged from its
    files. A single server, or servers that are all slow, have nothing to be compared with.
    """
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
            remedy=f"Find other clients of {load.node}, and place parameters by size.",
        )
    late = _late_servers(run)
    for index, (node, waited_s, other_s) in late.items():
        yield failed(
            f"replies of server {index} on {node}",
            f"every worker waited at least {format_time(waited_s)} for replies of server {index} on {node}, and at "
            f"most {format_time(other_s)} for those of the others",
            at=Evidence(FACT, format_time(waited_s), f"about {format_time(other_s)}", node=node),
            remedy=f"Find what else runs on {node} (`uptime`, `cat /sys/fs/cgroup/cpu.max`), and compare its links "
            "with those of the other servers.",
        )
    if not late and not any(load.uneven for load in loads):
        yield passed(f"load of servers: {', '.join(f'{load.share:.0%}' for load in loads)} of the bytes moved")


#: A server is late for whose replies every worker waited this long, and this many times as long as any for the others'.
_LATE_S, _LATE_FACTOR = 2.0, 5.0


def _late_servers(run: ServerRun) -> dict[int, tuple[str, float, float]]:
    """The server that answers late, if any: its node, the shortest wait of a worker, and the longest for the others.

    A server makes workers wait for each other, which shows nothing about it.
    """
    held_s = {(report.index, seen.index): seen.waited_s for _, report in run.servers for seen in report.seen}
    waits: dict[int, list[float]] = {}
    for _, report in run.workers:
        for seen in report.seen:
            waits.setdefault(seen.index, []).append(
                max(0.0, seen.waited_s - held_s.get((seen.index, report.index), 0.0))
            )
    found: dict[int, tuple[str, float, float]] = {}
    for node, server in run.servers:
        others = [max(each) for index, each in waits.items() if index != server.index]
        waited_s = min(waits.get(server.index, [0.0]))
        if others and waited_s >= max(_LATE_S, _LATE_FACTOR * max(others)):
            found[server.index] = (node, waited_s, max(others))
    return found


#: A step is slow that takes this many times as long as the slowest link needs for the bytes of the busiest node.
SLOW_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """The communication of one step: the median over the steps of the slowest worker, and the bytes of the model.

    `job_s` is the time of a step with the job's own sizes, at the same rate.
    """

    node: str
    seconds: float
    dense_bytes: int
    job_s: float

    @property
    def bytes_per_s(self) -> float:
        """What a worker pushes and pulls per second."""
        return 2 * self.dense_bytes / self.seconds


def step_time(run: ServerRun, shape: JobShape) -> StepTime | None:
    """The time of a step; None if no worker measured any, or there is nothing dense."""
    dense = sum(report.dense_bytes for _, report in run.servers)
    times = {
        node: statistics.median(push + pull for push, pull in zip(report.push_s[1:], report.pull_s[1:], strict=False))
        for node, report in run.workers
        if min(len(report.push_s), len(report.pull_s)) > 1
    }
    if not times or not dense or max(times.values()) <= 0.0:
        return None
    node, seconds = max(times.items(), key=lambda item: item[1])
    return StepTime(node, seconds, dense, seconds * shape.stated_bytes / dense)


@server_check("SMK029", "servers-slower-than-links", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@may_fail_by_injection("delay", "loss")
@given(complete_server_run)
def servers_slower_than_links(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """A step with the job's own sizes exchanges parameters as fast as the links allow.

    What it checks: with `--profile-model`, the run trains parameters of the job's sizes, divided by a number if memory
    requires it. The median time that a worker pushes and pulls in a step is scaled to the job's own size, and compared
    with the time that the slowest measured link needs for the bytes of the busiest node.

    Why it matters: workers do nothing else while they exchange parameters. A step of two seconds of communication and
    one of arithmetic uses a third of the cluster.

    Example: a step exchanges 2.3 GB with 2 servers in 21 s; the slowest link carries that in 3.9 s.

    Fix: add servers, or place them on nodes of their own; see SMK026 for an uneven load and LNK006 for a slow link.

    Known limits: rows of tables are not counted, because a batch's number of rows is not known. Without measured links,
    with more processes than cores on a node, or with all of them on one machine, the time is reported and not judged.
    The arithmetic of the job is not run.
    """
    what = "communication of a step"
    if not fleet.smoke_options.profile_model:
        yield not_applicable(what, "the run trains a small model of its own; --profile-model gives it the job's sizes")
        return
    found = processes(job, fleet, facts)
    shape = shape_of(job, fleet, facts, found) if not isinstance(found, str) else None
    if shape is None:
        yield unknown(what, "the files do not state the size of every parameter, so a small model was trained")
        return
    timed = step_time(run, shape)
    if timed is None:
        yield unknown(what, "no worker measured a step with dense parameters")
        return
    summary = _summary(timed, shape, len(run.servers))
    reason = _not_judged(run, fleet, facts)
    slowest = slowest_direction(facts, {node for node, _ in (*run.servers, *run.workers)})
    if reason or slowest is None:
        yield unknown(what, f"{reason or 'no link was measured'}; {summary}")
        return
    mbps, pair = slowest
    node, busiest = max(_bytes_of_a_step(run).items(), key=lambda item: item[1])
    due_s = busiest * 8 / (mbps * 1e6)
    if timed.seconds <= SLOW_FACTOR * due_s:
        yield passed(f"{what}: {summary}; the slowest link needs {format_time(due_s)} for the bytes of {node}")
        return
    yield failed(
        what,
        f"{summary}; the slowest link ({pair[0]} to {pair[1]}, {format_rate(mbps)}) needs {format_time(due_s)} for the "
        f"{size(busiest)} of {node}, the busiest node",
        at=Evidence(FACT, format_time(timed.seconds), f"<= {format_time(SLOW_FACTOR * due_s)}", node=timed.node),
        remedy=f"Look at the load of {node} and at what else uses its links; see SMK026 for servers with an uneven "
        "load. More servers divide the bytes, if each is on a node of its own.",
    )


def _summary(timed: StepTime, shape: JobShape, servers: int) -> str:
    moved = size(2 * timed.dense_bytes)
    number = f"{servers} servers" if servers != 1 else "one server"
    text = f"a worker on {timed.node} exchanged {moved} with {number} in {format_time(timed.seconds)}"
    if shape.divisor > 1:
        text += (
            f", 1/{shape.divisor} of the job's {size(2 * shape.stated_bytes)}, "
            f"which take {format_time(timed.job_s)} at this rate"
        )
    return text


def _not_judged(run: ServerRun, fleet: Fleet, facts: Facts) -> str:
    """Why the time does not reflect the network; empty if it does."""
    if not is_multi_node(fleet):
        return "all processes are on one machine"
    started = Counter(node for node, _ in (*run.servers, *run.workers))
    cores = {node: place.cores for node, place in facts.observed(server_place).items()}
    crowded = [node for node, count in started.items() if (known := cores.get(node)) is not None and count > known]
    return f"more processes than cores on {fold(crowded)}" if crowded else ""


def _bytes_of_a_step(run: ServerRun) -> Mapping[str, int]:
    """The bytes that each node sends, or receives, in one step: servers for all workers, workers for all servers."""
    found: Counter[str] = Counter()
    whole = sum(report.dense_bytes for _, report in run.servers)
    for node, report in run.servers:
        found[node] += report.dense_bytes * len(run.workers)
    for node, _ in run.workers:
        found[node] += whole
    return found
