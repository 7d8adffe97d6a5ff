"""Checks that parameter servers and workers of the training run finished, with correct values and consistent
settings.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from preflight.analysis.rank_state import UNFINISHED, build_views, names_text
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.links.fleet_comparison import format_rate, format_time, slowest_direction
from preflight_checks.plans import gated_by, requests_for, size
from preflight_checks.probes.environment import server_place
from preflight_checks.requirements import fold, is_multi_node
from preflight_checks.smoke.plan import details, observed_state, remedy_for_dead
from preflight_checks.smoke.ranks import framework_of, may_fail_by_injection
from preflight_checks.smoke.server_run import (
    FACT,
    PLAN_PROBES,
    PROBES,
    JobShape,
    ServerRun,
    blocking_check,
    complete_server_run,
    has_backup,
    has_uncounted_pushes,
    missing_server_run_verdict,
    mode_of,
    plan_servers,
    processes,
    server_check,
    server_run_of,
    shape_of,
)
from reference_trainer.collective.steps import MAX_LOSS_RATIO
from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps.run_report import IMPOSSIBLE, Replacement, ServerReport, WorkerReport
from reference_trainer.ps.settings import EXACT_READ

_REMEDIES = {
    "missing": "Find out why no process starts on {node}: check the job's interpreter and environment there.",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of {name} in the evidence: it shows what the process waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
}
#: The remedy if all processes hang together, or several lost their connections, and none is named.
_REMEDY_FOR_NOBODY = "Check the path between the nodes; the link checks test each pair separately."


@server_check("SMK021", "server-or-worker-did-not-finish", reads=PLAN_PROBES, severity=Severity.ERROR)
@may_fail_by_injection("kill", "stop")
def server_or_worker_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every server and worker of a short training run with parameter servers completes.

    What it checks: the servers and workers that the job starts, each on its node, with the job's own endpoints and mode
    (synchronous, asynchronous, geo), train a small dense and sparse model with the job's interpreter. If some do not
    complete, the process that the others wait for is named by role, index, node and phase: missing, dead, stopped,
    stuck, or lost with its node.

    Why it matters: frameworks do not notice. Trainers of Paddle 2.6 continue without a server and exit with 0, stall
    for eight minutes on a stopped server, and wait forever for a missing trainer.

    Example: server 1 on node-b was killed by SIGKILL during serving; workers 0 to 3 could not continue because of it.

    Fix: examine the named process and node first; the evidence contains its stack or last output.

    Known limits: the model is small; memory and bandwidth of the real job are not tested. The servers are preflight's
    own, written with torch, or Paddle's if the job's Python has paddle and no torch.
    """
    run = server_run_of(job, facts)
    early = missing_server_run_verdict(job, fleet, facts, run)
    if early is not None:
        yield early
    elif run.complete:
        nodes = len({record.request.node for record in run.records})
        framework = run.workers[0][1].framework
        own = f"; it uses the servers of {framework}" if framework.startswith("paddle") else ""
        where = f"{names_text(run.members)} on {nodes} nodes"
        yield passed(f"parameter-server run: {where} ({mode_of(job, fleet).why}{own})")
        untested = framework_of(job, fleet, facts).untested
        if untested:
            yield unknown("the job's own servers", untested)
    elif run.culprit is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        text = f"processes on {fold(silent)} did not finish: {fold(reasons, 2)}"
        yield unknown("parameter-server run", text, nodes=silent, required=True)
    elif run.culprit.kind == UNFINISHED:
        yield unknown("parameter-server run", run.culprit.because, nodes=run.nodes, required=True)
    elif blocking_check(run) != "SMK021":
        yield unknown("parameter-server run", f"blocked by {blocking_check(run)}: {run.culprit.because}")
    else:
        remedy = _REMEDIES.get(run.culprit.kind, "Check {node}.") if run.culprit.title else _REMEDY_FOR_NOBODY
        yield _culprit_finding(run, run.culprit, "all processes complete", remedy)


def _culprit_finding(run: ServerRun, culprit: Culprit, expected: str, remedy: str) -> Verdict:
    waiting = [member for number in culprit.waiting if (member := run.member(number)) is not None]
    because = f"; {names_text(waiting)} could not continue because of it" if waiting and culprit.title else ""
    return failed(
        culprit.title or "parameter-server run",
        f"{culprit.because}{because}",
        at=Evidence(FACT, observed_state(culprit), expected, node=culprit.node, at_s=culprit.since_s),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=run.nodes,
        remedy=remedy_for_dead(run, culprit)
        if culprit.kind == "dead"
        else remedy.format(node=culprit.node, name=culprit.title),
    )


def _started_run(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Generator[Verdict, None, ServerRun | None]:
    """Return the run if at least one of its processes started; otherwise yield the verdict that replaces the check."""
    run = server_run_of(job, facts)
    early = missing_server_run_verdict(job, fleet, facts, run)
    if early is None:
        return run
    yield unknown(subject, "blocked by SMK021: no process ran") if early.required else early
    return None


@server_check("SMK022", "server-endpoint-unusable", severity=Severity.ERROR)
@gated_by(functools.partial(_started_run, subject="server endpoints"))
def server_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Every server can listen at its endpoint, and every worker can open every server's port.

    What it checks: each server binds its port before torch is imported, and each worker connects to all of them from
    inside the job context. The failures form a matrix: a column is a server that is down or filtered, a row an isolated
    worker, a single cell the path between the two. The process that responds at the port must be a server of this run.

    Why it matters: frameworks repeat "server not ready" forever, without naming the worker or the cause.

    Example: server 1 on node-b listens, but no worker can open its port: 10.0.0.2:6170 is timed-out, seen from node-c,
    node-d.

    Fix: open the port between the nodes; use server addresses that the workers can reach; end processes that use the
    port.

    Known limits: connections within one node prove nothing about the network and do not count.
    """
    culprit = run.culprit
    if culprit is None or blocking_check(run) != "SMK022":
        opened = [e for e in run.events if e.data.get("event") == rank_events.DIAL and e.data.get("result") == "open"]
        pairs = {(event.request_key, event.data.get("to")) for event in opened}
        servers = len([member for member in run.members if member.role == "server"])
        others = [member for member in run.members if member.role != "server"]
        if pairs and len(pairs) >= servers * len(others):
            yield passed(f"server endpoints: {servers} opened by {names_text(others)}")
        else:
            yield unknown("server endpoints", f"blocked by {blocking_check(run)}: not all processes reached this phase")
        return
    remedy = (
        "Check what uses or filters the port (`ss -ltnp` on {node}, firewall rules between the nodes), and what the "
        "endpoint's name resolves to on each worker."
    )
    yield _culprit_finding(run, culprit, "every worker opens every server's port", remedy)


@server_check("SMK023", "servers-and-workers-told-differently", severity=Severity.ERROR)
@gated_by(functools.partial(_started_run, subject="process settings"))
def process_settings_differ(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Servers and workers have consistent settings for themselves and each other.

    What it checks: before torch is imported, each process reports its role, index, the numbers of servers and workers,
    the list of servers, its own endpoint, and what it would train, as set by its launch line and its node's
    environment. Faults are duplicate and missing indexes, different numbers, lists and endpoints, endpoints outside the
    list or not on their host, unknown roles, and parameters with other shapes or servers.

    Why it matters: with any of these, frameworks hang silently, or some parameters are never trained.

    Example: worker 1 on node-d (d:4243) and worker 1 on node-c (c:4242) are both worker 1; no process is worker 0.

    Fix: give every process the same list and numbers, and a unique index.

    Known limits: how the job's own program uses these values is not seen.
    """
    culprit = run.culprit
    if culprit is not None and blocking_check(run) == "SMK023":
        remedy = "Give every process the same lists and counts, and a unique index" + _sources(run, culprit)
        yield _culprit_finding(run, culprit, "equal lists and counts, and unique indexes", remedy)
        return
    hellos = {e.request_key for e in run.events if e.data.get("phase") == rank_events.STARTED}
    if len(hellos) == len(run.records):
        yield passed(f"what {names_text(run.members)} agree")
    else:
        yield unknown("process settings", f"blocked by {blocking_check(run)}: not all processes reported their role")


def _sources(run: ServerRun, culprit: Culprit) -> str:
    """Return the sources of the inconsistent settings, as the end of a remedy."""
    keys = {member.key for member in run.members if member.rank in (culprit.rank, *culprit.also)}
    sources = dict.fromkeys(str(r.request.params.get("source", "")) for r in run.records if r.request.key in keys)
    known = [source.replace("{", "(").replace("}", ")") for source in sources if source]
    return f" (check {fold(known)})." if known else "."


@requests_for(*PROBES)
def plan_with_backup(job: Job, fleet: Fleet, facts: Facts) -> list[Request]:
    """Return the requests for servers and workers, and for the backup worker if one was requested."""
    return list(plan_servers(job, fleet, facts)) if fleet.smoke_options.backup else []


@check("SMK028", "worker-replaced", plan=plan_with_backup, when="smoke", severity=Severity.INFO)
@may_fail_by_injection("kill", "stop")
def worker_replaced(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """With --backup, a worker that died or blocked the others was replaced, and the run completed.

    What it checks: one backup worker joins the run and waits. The servers drop a worker when its connection ends or it
    has blocked others for 5 s; the backup worker continues from the unfinished push, and all results are checked as
    usual.

    Why it matters: recovery that was never exercised may fail when it is needed. And a node that loses a worker within
    a minute will also lose one of the job's.

    Example: worker 2 on node-c was killed by SIGKILL at step 7 of training; backup worker 0 on node-d replaced it 0.8 s
    after its last event, and the run completed.

    Fix: find out why the worker was lost: check its last output and its node's log. The replacement itself worked.

    Known limits: the servers are the reference trainer's, so this shows whether the cluster allows a replacement (room
    for one more process, no scheduler that kills the rest), not whether the job's framework does. If servers wait for
    every worker, none can be replaced. Paddle's own servers cannot replace a worker.
    """
    subject = "backup worker"
    if not fleet.smoke_options.backup:
        yield not_applicable(subject, "--backup was not given")
        return
    run = yield from complete_server_run(job, fleet, facts)
    if run is None:
        return
    mode = mode_of(job, fleet)
    if not has_backup(fleet, mode):
        text = f"the servers wait for every worker ({mode.why}), so none can be replaced; try --mode async or ssp"
        yield unknown(subject, text, required=True)
        return
    if has_uncounted_pushes(run):
        yield unknown(subject, "Paddle's own servers cannot replace a worker", required=True)
        return
    if not run.replaced:
        where = ", ".join(node for node, _ in run.unused_backups)
        yield passed(f"{subject} on {where}: not needed, because all workers completed")
    for number in sorted(run.replaced):
        yield _recovery_verdict(run, number)


def _recovery_verdict(run: ServerRun, number: int) -> Verdict:
    lost, backup = run.member(number), run.replaced[number]
    assert lost is not None
    found = [
        replacement for _, report in run.servers for replacement in report.replaced if replacement.worker == lost.index
    ]
    # Servers lose a worker one after another; the highest clock is its progress.
    replacement = max(found, key=lambda taken: (taken.phase, taken.clock))
    who = f"{backup.name} on {backup.node}" if backup is not None else "a backup worker"
    ended = next(record.unavailable for record in run.records if record.request.key == lost.key)
    happened = f"{_loss_text(ended, any(each.lagged for each in found))} at {_phase_text(replacement)}"
    after_s = _taken_s(run, number) - build_views(run.members, run.events, (), began_s=0.0)[number].last_event_at
    text = f"{lost.name} on {lost.node} {happened}; {who} replaced it {after_s:.1f} s after its last event"
    return failed(
        f"{lost.name} on {lost.node}",
        f"{text}, and the run completed",
        at=Evidence(FACT, replacement.why, "all workers complete", node=lost.node),
        remedy=f"Find out why {lost.name} was lost: check its last output and the log of {lost.node}. The "
        "replacement worked.",
    )


def _taken_s(run: ServerRun, number: int) -> float:
    """Return the time at which the first server reported that a backup worker replaced this index."""
    replacements = (event for event in run.events if event.data.get("event") == rank_events.REPLACED)
    return min(event.at_s for event in replacements if event.data.get("worker") == number)


def _loss_text(ended: Unavailable | None, held_others_up: bool) -> str:
    if ended is not None and ended.exit_code is not None and ended.exit_code < 0:
        import signal

        return f"was killed by {signal.Signals(-ended.exit_code).name}"
    if ended is not None and ended.exit_code is not None:
        return f"exited with {ended.exit_code}"
    return "delayed the others" if held_others_up else "was lost"


def _phase_text(replacement: Replacement) -> str:
    phase = "the phase with known gradients" if replacement.phase <= EXACT_READ else "training"
    return f"step {replacement.clock} of {phase}"


#: Steps after which a correct run has learned the built-in task to some degree.
_LEARNING_STEPS = 5
#: The largest allowed difference from one process that trained on all shards, in modes with such a reference.
TOLERANCE = 1e-6


@server_check("SMK024", "wrong-server-result", severity=Severity.ERROR)
@may_fail_by_injection("loss", "double", "flip")
@gated_by(functools.partial(complete_server_run, counted="known parameters"))
def wrong_server_result(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Parameters with exactly known values are correct from every server to every worker.

    What it checks: in a first phase, workers push gradients that are known in advance (integers times powers of two, so
    that any order of adding gives the same bits), dense and sparse, in the job's mode. Each push that arrives at the
    servers, and everything that each worker pulls at the end, is compared bit for bit. A difference identifies the
    server, the shard, and the worker whose push is lost or doubled.

    Why it matters: corrupted, lost and doubled updates cause no error. Training continues and learns something else.

    Example: worker 1 on node-d pulled hidden.weight from server 0 with 1 of 10240 elements wrong.

    Fix: remove the named node from the job, and test its memory and network card.

    Known limits: faults that appear only under heat or in large transfers may not show here.
    """
    wrong = [(f"server {r.index}", node, m) for node, r in run.servers for m in r.mismatches]
    wrong += [(f"worker {r.index}", node, m) for node, r in run.workers for m in r.mismatches]
    if wrong:
        yield _wrong_finding(run, wrong)
        return
    digests = {f"worker {r.index}": (node, r.exact_digest) for node, r in run.workers if r.exact_digest}
    odd = _odd_workers(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            f"known parameters on {who} on {node}",
            f"{who} on {node} pulled different parameters from the other workers in the phase with known gradients",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            processes=(who,),
            remedy=f"Remove {node} from the job, and test its memory and network card.",
        )
        return
    steps = max((report.exact_steps for _, report in run.workers), default=0)
    yield passed(f"known parameters: equal bit for bit on {len(run.workers)} workers after {steps} steps")


def _wrong_finding(run: ServerRun, mismatches: list[tuple[str, str, Mismatch]]) -> Verdict:
    who, node, first = mismatches[0]
    nodes = _suspects(run, mismatches)
    more = f" ({len(mismatches)} wrong results in total)" if len(mismatches) > 1 else ""
    return failed(
        f"known parameters on {fold(nodes)}",
        f"{first.operation}: on {who} ({node}) element {first.index} is {first.got}, expected exactly "
        f"{first.expected}; {first.explanation}; {first.wrong} of {first.elements} elements are wrong{more}",
        at=_evidence(who, node, first),
        also=[_evidence(*item) for item in mismatches[1:8]],
        nodes=nodes,
        processes=_processes(mismatches),
        remedy=f"Remove {fold(nodes)} from the job, and test its memory and network card.",
    )


def _suspects(run: ServerRun, mismatches: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """Return the node of the worker with wrong pushes if all mismatches agree, otherwise the nodes that see the
    fault.
    """
    culprit = {int(worker) for _, _, mismatch in mismatches for worker in mismatch.contributions}
    nodes = {report.index: node for node, report in run.workers}
    if len(culprit) == 1 and (worker := next(iter(culprit))) in nodes:
        return (nodes[worker],)
    return tuple(dict.fromkeys(node for _, node, _ in mismatches))


def _processes(mismatches: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """Return the workers with wrong pushes; without any, the processes that sent or received a wrong tensor."""
    workers = dict.fromkeys(
        f"worker {int(worker)}" for _, _, mismatch in mismatches for worker in mismatch.contributions
    )
    others = (name for who, _, mismatch in mismatches for name in (who, mismatch.sender) if name)
    return tuple(workers) or tuple(others)


def _evidence(subject: str, node: str, mismatch: Mismatch) -> Evidence:
    observed = f"{subject}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


def _odd_workers(digests: dict[str, tuple[str, str]]) -> tuple[str, str, str, str] | None:
    """Return a worker with another digest than the majority, its node and both digests; None if all are equal."""
    counts = Counter(digest for _, digest in digests.values())
    if len(counts) < 2:
        return None
    common = counts.most_common(1)[0][0]
    who, (node, digest) = next((who, item) for who, item in digests.items() if item[1] != common)
    return who, node, digest, common


@server_check("SMK025", "updates-lost-doubled-or-stale", severity=Severity.ERROR)
@may_fail_by_injection("loss", "double", "flip")
@gated_by(functools.partial(complete_server_run, counted="updates"))
def updates_lost_doubled_or_stale(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Every push of every worker is applied once, and no worker reads parameters older than the mode allows.

    What it checks: each server compares the pushes of each worker with the number of steps, and keeps a histogram of
    how far each reader was ahead of the slowest worker: none in synchronous mode, at most the bound in bounded
    staleness.

    Why it matters: a lost or doubled push, or a read past the bound, changes the result without an error.

    Example: server 1 on node-b applied 39 pushes of worker 2 on node-d, but 40 were expected.

    Fix: check the path between the two, and the memory of the named node.

    Known limits: asynchronous modes have no bound; the histogram is reported anyway.
    """
    faults = [verdict for node, report in run.servers for verdict in _count_findings(run, node, report)]
    yield from faults
    if not faults:
        pushes = sum(seen.pushes for _, report in run.servers for seen in report.seen)
        yield passed(f"updates: {pushes} pushes, each applied once; {_staleness(run)}")


def _count_findings(run: ServerRun, node: str, report: ServerReport) -> Iterator[Verdict]:
    where = f"server {report.index} on {node}"
    nodes = {worker.index: name for name, worker in run.workers}
    stale = {int(clocks): times for clocks, times in report.staleness.items() if int(clocks) > report.staleness_bound}
    bounded = report.mode in ("sync", "ssp")
    if stale and bounded:
        yield failed(
            f"staleness on {where}",
            f"{where} allowed {sum(stale.values())} reads up to {max(stale)} steps ahead of the slowest worker, but "
            f"mode {report.mode} permits at most {report.staleness_bound}",
            at=Evidence(FACT, f"staleness {max(stale)}", f"<= {report.staleness_bound}", node=node),
            remedy=f"Test the memory of {node}; the server's own counters contradict each other.",
        )
    for worker_stats in report.seen:
        if report.expected_pushes and worker_stats.pushes != report.expected_pushes:
            who = f"worker {worker_stats.index} on {nodes.get(worker_stats.index, worker_stats.host)}"
            what = "lost" if worker_stats.pushes < report.expected_pushes else "doubled"
            yield failed(
                f"pushes of {who}",
                f"{where} applied {worker_stats.pushes} pushes of {who}, but {report.expected_pushes} were expected: "
                f"{abs(worker_stats.pushes - report.expected_pushes)} {what}",
                at=Evidence(FACT, f"{worker_stats.pushes} pushes", str(report.expected_pushes), node=node),
                nodes=tuple(dict.fromkeys((node, nodes.get(worker_stats.index, node)))),
                processes=(f"worker {worker_stats.index}", f"server {report.index}"),
                remedy=f"Inspect the path between {nodes.get(worker_stats.index, worker_stats.host)} and {node}, "
                "and their memory.",
            )
    for text in report.violations[:4]:
        yield failed(
            f"updates on {where}",
            f"{where}: {text}",
            at=Evidence(FACT, text, "every push applied once, in order", node=node),
            processes=(f"server {report.index}",),
            remedy=f"Inspect the path between the workers and {node}, and its memory.",
        )


def _staleness(run: ServerRun) -> str:
    together: Counter[int] = Counter()
    for _, report in run.servers:
        together.update({int(clocks): times for clocks, times in report.staleness.items()})
    if not together:
        return "no reads"
    return f"reads at most {max(together)} steps ahead of the slowest worker"


@server_check("SMK027", "servers-trained-nothing", severity=Severity.ERROR)
@may_fail_by_injection("loss", "double", "flip")
@gated_by(complete_server_run)
def servers_trained_nothing(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """After a few training steps, all workers read the same parameters, and the model has learned.

    What it checks: SHA-256 of all parameters that each worker pulls at the end; whether every tensor changed and the
    loss of each worker fell; whether a single process gets the same parameters from the same data, adding pushes and
    reading weights in the order that the servers recorded.

    Why it matters: training over servers can finish with exit code 0 although the parameters that workers see never
    change: with Paddle 2.6, a hand-written asynchronous loop takes 100,000 steps and learns nothing.

    Example: on worker 0 on node-c hidden.weight did not change in 20 steps.

    Fix: compare library versions and hardware of the named node with the others.

    Known limits: a small model with one table; the comparison with one process is left out above 1280 pushes.
    """
    faults = list(_parity_findings(run))
    for node, report in run.workers:
        faults += _untrained_findings(run, node, report)
    yield from faults
    if not faults:
        is_compared = any(report.difference_to_one_process is not None for _, report in run.workers)
        yield passed(
            f"training over servers: {len(run.workers)} workers read the same parameters, and the model has learned"
            + ("" if is_compared else "; not compared with one process")
        )


def _parity_findings(run: ServerRun) -> Iterator[Verdict]:
    digests = {f"worker {r.index} on {node}": (node, r.digest) for node, r in run.workers if r.digest}
    odd = _odd_workers(digests)
    if odd is not None:
        who, node, digest, common = odd
        yield failed(
            "parameters after training",
            f"{who} on {node} reads different parameters from most workers after the last barrier, when no worker "
            "pushes anymore",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            processes=(who,),
            remedy=f"Test the memory and network card of {node}, and compare its versions with the other nodes.",
        )


def _untrained_findings(run: ServerRun, node: str, report: WorkerReport) -> Iterator[Verdict]:
    where = f"worker {report.index} on {node}"
    if report.unmoved:
        yield failed(
            f"training on {where}",
            f"{fold(report.unmoved)} did not change in {report.steps} steps on {where}; every tensor must change",
            at=Evidence(FACT, f"unmoved: {fold(report.unmoved)}", "every tensor changes", node=node),
            processes=(f"worker {report.index}",),
            remedy="Run torch's own tests on that node: the backward pass or the exchange has no effect there.",
        )
    # Single steps are not judged, because a worker that runs ahead sees hardly more than its own pushes.
    first, last = report.first_loss, report.last_loss
    if report.steps >= _LEARNING_STEPS and not last < first * MAX_LOSS_RATIO:
        limit = MAX_LOSS_RATIO * first
        yield failed(
            f"training on {where}",
            f"the loss on {where} changed from {first:.4g} to {last:.4g} in {report.steps} steps; "
            f"expected less than {limit:.4g}",
            at=Evidence(FACT, f"{last:.4g}", f"< {limit:.4g}", node=node),
            processes=(f"worker {report.index}",),
            remedy="Compare torch and its numeric libraries on that node with those of the other nodes.",
        )
    difference = report.difference_to_one_process
    if difference == IMPOSSIBLE:
        yield failed(
            "training compared with one process",
            "the servers' own records show a push that was not added exactly once, or a read of weights that did "
            "not exist yet",
            at=Evidence(FACT, "pushes lost, doubled or out of order", "every push once, in order", node=node),
            nodes=tuple(dict.fromkeys(server for server, _ in run.servers)),
            remedy="See SMK024 and SMK025 first; then test the memory of the servers' nodes.",
        )
    elif difference is not None and not difference <= TOLERANCE:
        yield failed(
            "training compared with one process",
            f"the parameters after {report.steps} steps of {report.workers} workers differ by {difference:.3g} from "
            f"those of one process on the same data; expected at most {TOLERANCE:g}",
            at=Evidence(FACT, f"{difference:.3g}", f"<= {TOLERANCE:g}", node=node),
            remedy="See SMK024 first; then compare the nodes' numeric libraries.",
        )


# Checks the traffic of each server, and how long a step of the job would communicate with its servers.


#: A server that holds or moves this many times the mean is unevenly loaded (evidence: size-balanced placement reaches
#: 1.05, hashing 1.10 from 50 slices a server on).
UNEVEN = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes of a server, its shares, and whether it moved far more than its share of the parameters explains."""

    index: int
    node: str
    bytes_moved: int
    share: float
    parameter_share: float
    uneven: bool


def loads_of(run: ServerRun) -> tuple[Load, ...]:
    """Return the load of each server that completed; empty if the servers reported no bytes."""
    moved = [sum(seen.bytes_in + seen.bytes_out for seen in report.seen) for _, report in run.servers]
    held = [report.dense_bytes for _, report in run.servers]
    if not sum(held) or not sum(moved) or has_uncounted_pushes(run):
        return ()
    found: list[Load] = []
    for (node, report), mine, own in zip(run.servers, moved, held, strict=True):
        share, due = mine / sum(moved), own / sum(held)
        uneven = share > UNEVEN * due and share > UNEVEN / len(run.servers)
        found.append(Load(report.index, node, mine, share, due, uneven))
    return tuple(found)


@server_check("SMK026", "server-load-uneven", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@may_fail_by_injection("delay", "loss", "double", "flip")
@gated_by(functools.partial(complete_server_run, counted="server load"))
def server_load_uneven(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """The traffic of each server matches its share of the parameters, and no server keeps all workers waiting.

    What it checks: the bytes that each server received and sent, compared with its share of the parameters; and how
    long workers waited for its replies, excluding the time in which it waited for other workers.

    Why it matters: every step waits for the busiest server. A server that moves much more than its share serves another
    job, or sends data twice. A server that replies late delays every worker.

    Example: server 0 on node-a moved 62 % of all bytes, but holds 33 % of the parameters.

    Fix: find other clients of the named server, and what else runs on its node; assign parameters by size.

    Known limits: the model is preflight's own small one; the placement of the job's parameters is judged from its
    files. A single server, or servers that are all slow, have nothing to be compared with.
    """
    if len(run.servers) < 2:
        yield not_applicable("server load", "there is only one server")
        return
    loads = loads_of(run)
    if not loads:
        yield unknown("server load", "the servers reported no bytes")
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
            remedy=f"Find other clients of {load.node}, and assign parameters by size.",
        )
    late_servers = _late_servers(run)
    for index, (node, waited_s, other_s) in late_servers.items():
        yield failed(
            f"replies of server {index} on {node}",
            f"every worker waited at least {format_time(waited_s)} for replies of server {index} on {node}, but at "
            f"most {format_time(other_s)} for replies of the other servers",
            at=Evidence(FACT, format_time(waited_s), f"about {format_time(other_s)}", node=node),
            remedy=f"Find what else runs on {node} (`uptime`, `cat /sys/fs/cgroup/cpu.max`), and compare its links "
            "with those of the other servers.",
        )
    if not late_servers and not any(load.uneven for load in loads):
        yield passed(f"server load: {', '.join(f'{load.share:.0%}' for load in loads)} of the bytes moved")


#: A server is late for whose replies every worker waited this long, and this many times as long as any for the others'.
_LATE_S, _LATE_FACTOR = 2.0, 5.0


def _late_servers(run: ServerRun) -> dict[int, tuple[str, float, float]]:
    """Return the server that replies late, if any, by index: its node, the shortest wait of a worker for it, and the
    longest wait for other servers.

    The time in which a server makes workers wait for each other does not count, because it shows nothing about the
    server.
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


#: A step is slow if it takes this many times as long as the slowest link needs for the busiest node's bytes.
SLOW_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step's communication: the median of its slowest worker, the bytes of the model, and `job_s` for the job's
    sizes.
    """

    node: str
    seconds: float
    dense_bytes: int
    job_s: float

    @property
    def bytes_per_s(self) -> float:
        """The bytes that a worker pushes and pulls per second."""
        return 2 * self.dense_bytes / self.seconds


def step_time(run: ServerRun, shape: JobShape) -> StepTime | None:
    """Return the time of a step; None if no worker measured one, or the servers hold no dense parameters."""
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
@gated_by(complete_server_run)
def servers_slower_than_links(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """A step with the job's own sizes exchanges parameters as fast as the links allow.

    What it checks: with `--profile-model`, the run trains parameters of the job's sizes, divided by a number if memory
    requires it. The median time for which a worker pushes and pulls in a step is scaled to the job's own size, and
    compared with the time that the slowest measured link needs for the bytes of the busiest node.

    Why it matters: workers do nothing else while they exchange parameters. A step of two seconds of communication and
    one of arithmetic uses a third of the cluster.

    Example: a step exchanges 2.3 GB with 2 servers in 21 s, but the slowest link carries that in 3.9 s.

    Fix: add servers, or place them on separate nodes; see SMK026 for an uneven load and LNK006 for a slow link.

    Known limits: rows of tables are not counted, because the number of rows in a batch is unknown. Without measured
    links, with more processes than cores on a node, or with all processes on one machine, the time is only reported.
    The arithmetic of the job is not run.
    """
    what = "communication per step"
    if not fleet.smoke_options.profile_model:
        yield not_applicable(what, "the run trains its own small model; --profile-model gives it the job's sizes")
        return
    found = processes(job, fleet, facts)
    shape = shape_of(job, fleet, facts, found) if not isinstance(found, str) else None
    if shape is None:
        yield unknown(what, "the files do not give the size of every parameter, so a small model was trained")
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
        remedy=f"Check the load of {node} and what else uses its links; see SMK026 for servers with an uneven load. "
        "More servers share the traffic if each is on its own node.",
    )


def _summary(timed: StepTime, shape: JobShape, servers: int) -> str:
    moved = size(2 * timed.dense_bytes)
    number = f"{servers} servers" if servers != 1 else "one server"
    text = f"a worker on {timed.node} exchanged {moved} with {number} in {format_time(timed.seconds)}"
    if shape.divisor > 1:
        text += (
            f", 1/{shape.divisor} of the job's {size(2 * shape.stated_bytes)}, which would take "
            f"{format_time(timed.job_s)} at this rate"
        )
    return text


def _not_judged(run: ServerRun, fleet: Fleet, facts: Facts) -> str:
    """Return why the time does not reflect the network; empty if it does."""
    if not is_multi_node(fleet):
        return "all processes are on one machine"
    started = Counter(node for node, _ in (*run.servers, *run.workers))
    cores = {node: place.cores for node, place in facts.observed(server_place).items()}
    crowded = [node for node, count in started.items() if (known := cores.get(node)) is not None and count > known]
    return f"more processes than cores on {fold(crowded)}" if crowded else ""


def _bytes_of_a_step(run: ServerRun) -> Mapping[str, int]:
    """Return the bytes that each node sends, or receives, in one step, for all servers and workers on it."""
    found: Counter[str] = Counter()
    whole = sum(report.dense_bytes for _, report in run.servers)
    for node, report in run.servers:
        found[node] += report.dense_bytes * len(run.workers)
    for node, _ in run.workers:
        found[node] += whole
    return found
