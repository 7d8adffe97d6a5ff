"""Checks that parameter servers and workers of the training run finished, with correct values and equal settings."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from preflight.analysis.rank_state import UNFINISHED, build_views, names_text
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import given, requests_for
from preflight_checks.requirements import fold
from preflight_checks.smoke.plan import details, observed, remedy_for_dead
from preflight_checks.smoke.ranks import framework_of, may_fail_by_injection
from preflight_checks.smoke.server_run import (
    COST,
    FACT,
    PLAN_PROBES,
    PROBES,
    ServerRun,
    blocker,
    complete_server_run,
    has_backup,
    missing_server_run,
    mode_of,
    plan_servers,
    server_check,
    server_run_of,
    uncounted,
)
from reference_trainer.collective.steps import MAX_LOSS_RATIO
from reference_trainer.common.oracle import Mismatch
from reference_trainer.ps.run_report import IMPOSSIBLE, Replacement, ServerReport, WorkerReport
from reference_trainer.ps.settings import EXACT_READ

_REMEDIES = {
    "missing": "Find out why no process starts on {node}; it uses the job's interpreter and environment.",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of {name} in the evidence: it shows what the process waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
}
#: What to do if all processes hang together, or several lost their connections, and none is named.
_REMEDY_FOR_NOBODY = "Check the path between the nodes; the link checks test each pair separately."


@server_check("SMK021", "server-or-worker-did-not-finish", reads=PLAN_PROBES, severity=Severity.ERROR)
@may_fail_by_injection("kill", "stop")
def server_or_worker_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every server and worker of a short training run with parameter servers completes.

    What it checks: the servers and workers that the job starts, each on its node, with the job's own endpoints and in
    its mode (synchronous, asynchronous, geo), train a small dense and sparse model with the job's interpreter. If not
    all complete, the process that the others wait for is named by role, index, node and phase: missing, dead, stopped,
    stuck, or lost with its node.

    Why it matters: frameworks do not notice. Trainers of Paddle 2.6 continue without a server and exit with 0, stall
    for eight minutes on a stopped one, and wait forever for a missing trainer.

    Example: server 1 on node-b was killed by SIGKILL during serving; workers 0 to 3 could not continue because of it.

    Fix: inspect the named process and node first; the evidence contains its stack or last output.

    Known limits: the model is small; memory and bandwidth of the real job are not tested. The servers are preflight's
    own, written with torch, or Paddle's if the job's Python has paddle and no torch.
    """
    run = server_run_of(job, facts)
    early = missing_server_run(job, fleet, facts, run)
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
    elif blocker(run) != "SMK021":
        yield unknown("parameter-server run", f"blocked by {blocker(run)}: {run.culprit.because}")
    else:
        remedy = _REMEDIES.get(run.culprit.kind, "Check {node}.") if run.culprit.title else _REMEDY_FOR_NOBODY
        yield _named(run, run.culprit, "all processes complete", remedy)


def _named(run: ServerRun, culprit: Culprit, expected: str, remedy: str) -> Verdict:
    waiting = [member for number in culprit.waiting if (member := run.member(number)) is not None]
    because = f"; {names_text(waiting)} could not continue because of it" if waiting and culprit.title else ""
    return failed(
        culprit.title or "parameter-server run",
        f"{culprit.because}{because}",
        at=Evidence(FACT, observed(culprit), expected, node=culprit.node, at_s=culprit.since_s),
        also=(*details(run, culprit, FACT), *run.claims),
        nodes=run.nodes,
        remedy=remedy_for_dead(run, culprit)
        if culprit.kind == "dead"
        else remedy.format(node=culprit.node, name=culprit.title),
    )


@server_check("SMK022", "server-endpoint-unusable", severity=Severity.ERROR)
def server_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every server can listen at its endpoint, and every worker opens every server's port there.

    What it checks: each server binds its port before torch is imported, and each worker dials all of them from inside
    the job context. The failures form a matrix: a column is a server that is down or filtered, a row an isolated
    worker, a single cell the path between the two. The process that answers on the port must be a server of this run.

    Why it matters: frameworks repeat "server not ready" forever, and name neither the worker nor the cause.

    Example: server 1 on node-b listens, but no worker can open its port: 10.0.0.2:6170 is timed-out, seen from node-c,
    node-d.

    Fix: open the port between the nodes; give the servers addresses that the workers can reach; end what holds a port.

    Known limits: connections within one node prove nothing about the network and do not count.
    """
    run = server_run_of(job, facts)
    early = missing_server_run(job, fleet, facts, run)
    if early is not None:
        yield early if not early.required else unknown("server endpoints", "blocked by SMK021: no process ran")
        return
    culprit = run.culprit
    if culprit is None or blocker(run) != "SMK022":
        opened = [e for e in run.events if e.data.get("event") == rank_events.DIAL and e.data.get("result") == "open"]
        pairs = {(event.request_key, event.data.get("to")) for event in opened}
        servers = len([member for member in run.members if member.role == "server"])
        others = [member for member in run.members if member.role != "server"]
        if pairs and len(pairs) >= servers * len(others):
            yield passed(f"server endpoints: {servers} opened by {names_text(others)}")
        else:
            yield unknown("server endpoints", f"blocked by {blocker(run)}: not all processes reached this phase")
        return
    remedy = (
        "Check what holds or filters the port (`ss -ltnp` on {node}, firewall rules between the nodes), and what the "
        "endpoint's name resolves to on each worker."
    )
    yield _named(run, culprit, "every worker opens every server's port", remedy)


@server_check("SMK023", "servers-and-workers-told-differently", severity=Severity.ERROR)
def process_settings_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Servers and workers have consistent settings for themselves and each other.

    What it checks: before torch is imported each process reports its role, index, the numbers of servers and workers,
    the list of servers, its own endpoint, and what it would train, as set by its launch line and its node's
    environment. Faults are duplicate and missing indexes, different numbers, lists and endpoints, endpoints outside the
    list or not on their host, unknown roles, and parameters with other shapes or servers.

    Why it matters: with any of these, frameworks hang silently, or part of the parameters is never trained.

    Example: worker 1 on node-d (d:4243) and worker 1 on node-c (c:4242) are both worker 1; no process is worker 0.

    Fix: give every process the same list and numbers, and a unique index.

    Known limits: how the job's own program uses these values is not seen.
    """
    run = server_run_of(job, facts)
    early = missing_server_run(job, fleet, facts, run)
    if early is not None:
        yield early if not early.required else unknown("settings of processes", "blocked by SMK021: no process ran")
        return
    culprit = run.culprit
    if culprit is not None and blocker(run) == "SMK023":
        remedy = "Give every process the same lists and counts, and a unique index" + _sources(run, culprit)
        yield _named(run, culprit, "equal lists and counts, and unique indexes", remedy)
        return
    hellos = {e.request_key for e in run.events if e.data.get("phase") == rank_events.STARTED}
    if len(hellos) == len(run.records):
        yield passed(f"what {names_text(run.members)} agree")
    else:
        yield unknown("settings of processes", f"blocked by {blocker(run)}: not all processes reported their role")


def _sources(run: ServerRun, culprit: Culprit) -> str:
    """The sources of the inconsistent settings, as the end of a remedy."""
    keys = {member.key for member in run.members if member.rank in (culprit.rank, *culprit.also)}
    sources = dict.fromkeys(str(r.request.params.get("source", "")) for r in run.records if r.request.key in keys)
    known = [source.replace("{", "(").replace("}", ")") for source in sources if source]
    return f" (check {fold(known)})." if known else "."


@requests_for(*PROBES)
def plan_with_backup(job: Job, fleet: Fleet, facts: Facts) -> list[Request]:
    """The requests for servers, workers and the backup worker, if one was requested."""
    return list(plan_servers(job, fleet, facts)) if fleet.smoke_options.backup else []


@check("SMK028", "worker-replaced", plan=plan_with_backup, cost=COST, when="smoke", severity=Severity.INFO)
@may_fail_by_injection("kill", "stop")
def worker_replaced(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """With --backup, a worker that died or blocked the others was replaced, and the run completed.

    What it checks: one backup worker joins the run and waits. The servers drop a worker when its connection ends or it
    has blocked others for 5 s; the backup worker continues from the unfinished push, and all results are judged as
    usual.

    Why it matters: recovery that was never exercised may fail when it is needed. And a node that loses a worker within
    a minute will lose one of the job, too.

    Example: worker 2 on node-c was killed by SIGKILL at step 7 of training; spare 0 on node-d took its place 0.8 s
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
    if uncounted(run):
        yield unknown(subject, "Paddle's own servers cannot replace a worker", required=True)
        return
    if not run.replaced:
        where = ", ".join(node for node, _ in run.unused_backups)
        yield passed(f"{subject} on {where}: not needed, all workers completed")
    for number in sorted(run.replaced):
        yield _recovery(run, number)


def _recovery(run: ServerRun, number: int) -> Verdict:
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
    text = f"{lost.name} on {lost.node} {happened}; {who} took its place {after_s:.1f} s after its last event"
    return failed(
        f"{lost.name} on {lost.node}",
        f"{text}, and the run completed",
        at=Evidence(FACT, replacement.why, "all workers complete", node=lost.node),
        remedy=f"Find out why {lost.name} was lost: check its last output and the log of {lost.node}. Replacing it "
        "worked.",
    )


def _taken_s(run: ServerRun, number: int) -> float:
    """When the first server reported that a backup worker took over this index."""
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
@given(functools.partial(complete_server_run, counted="known parameters"))
def wrong_server_result(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Parameters with exactly known values are correct from every server to every worker.

    What it checks: in a first phase workers push gradients that are known in advance (integers times powers of two, so
    that any order of adding gives the same bits), dense and sparse, in the job's mode. Each push as it arrives on the
    servers, and everything that each worker pulls at the end, is compared bit by bit. A difference identifies the
    server, the shard, and the worker whose push is lost or doubled.

    Why it matters: corrupted, lost and doubled updates give no error. Training continues and learns something else.

    Example: worker 1 on node-d pulled hidden.weight from server 0 with 1 of 10240 elements wrong.

    Fix: remove the named node from the job and test its memory and network card.

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
            remedy=f"Remove {node} from the job and test its memory and network card.",
        )
        return
    steps = max((report.exact_steps for _, report in run.workers), default=0)
    yield passed(f"known parameters: equal bit by bit on {len(run.workers)} workers after {steps} steps")


def _wrong_finding(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> Verdict:
    who, node, first = wrong[0]
    nodes = _suspects(run, wrong)
    more = f" ({len(wrong)} wrong results in total)" if len(wrong) > 1 else ""
    return failed(
        f"known parameters on {fold(nodes)}",
        f"{first.operation}: on {who} ({node}) element {first.index} is {first.got}, expected exactly "
        f"{first.expected}; {first.explanation}; {first.wrong} of {first.elements} elements are wrong{more}",
        at=_evidence(who, node, first),
        also=[_evidence(*item) for item in wrong[1:8]],
        nodes=nodes,
        processes=_processes(wrong),
        remedy=f"Remove {fold(nodes)} from the job and test memory and network card there.",
    )


def _suspects(run: ServerRun, wrong: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """The node of the worker with wrong pushes, if all mismatches agree on one; else the nodes that see the fault."""
    culprit = {int(worker) for _, _, mismatch in wrong for worker in mismatch.contributions}
    nodes = {report.index: node for node, report in run.workers}
    if len(culprit) == 1 and (worker := next(iter(culprit))) in nodes:
        return (nodes[worker],)
    return tuple(dict.fromkeys(node for _, node, _ in wrong))


def _processes(wrong: list[tuple[str, str, Mismatch]]) -> tuple[str, ...]:
    """The workers with wrong pushes; without any, the processes that sent or received a wrong tensor."""
    workers = dict.fromkeys(f"worker {int(worker)}" for _, _, mismatch in wrong for worker in mismatch.contributions)
    others = (name for who, _, mismatch in wrong for name in (who, mismatch.sender) if name)
    return tuple(workers) or tuple(others)


def _evidence(subject: str, node: str, mismatch: Mismatch) -> Evidence:
    observed = f"{subject}, {mismatch.operation}, element {mismatch.index}: {mismatch.got}"
    return Evidence(FACT, f"{observed} (bits {mismatch.flipped_bits} differ)", mismatch.expected, node=node)


def _odd_workers(digests: dict[str, tuple[str, str]]) -> tuple[str, str, str, str] | None:
    """Each worker whose digest differs from the majority: the worker, its node, its digest, and the common one."""
    counts = Counter(digest for _, digest in digests.values())
    if len(counts) < 2:
        return None
    common = counts.most_common(1)[0][0]
    who, (node, digest) = next((who, item) for who, item in digests.items() if item[1] != common)
    return who, node, digest, common


@server_check(
    "SMK025",
    "updates-lost-doubled-or-stale",
    severity=Severity.ERROR,
)
@may_fail_by_injection("loss", "double", "flip")
@given(functools.partial(complete_server_run, counted="updates"))
def updates_lost_doubled_or_stale(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """Every push of every worker is applied once, and no worker reads parameters older than the mode allows.

    What it checks: each server compares the pushes of each worker with the steps taken, and keeps a histogram of
    how far each reader was ahead of the slowest worker: none in synchronous mode, at most the bound in bounded
    staleness.

    Why it matters: a lost or doubled push, or a read past the bound, changes the result and gives no error.

    Example: server 1 on node-b applied 39 pushes of worker 2 on node-d; 40 were expected.

    Fix: inspect the path between the two, and the memory of the named node.

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
            f"{where} allowed {sum(stale.values())} reads up to {max(stale)} steps ahead of the slowest worker; mode "
            f"{report.mode} permits at most {report.staleness_bound}",
            at=Evidence(FACT, f"staleness {max(stale)}", f"<= {report.staleness_bound}", node=node),
            remedy=f"Test the memory of {node}; the server's own counters contradict each other.",
        )
    for seen in report.seen:
        if report.expected_pushes and seen.pushes != report.expected_pushes:
            who = f"worker {seen.index} on {nodes.get(seen.index, seen.host)}"
            what = "lost" if seen.pushes < report.expected_pushes else "doubled"
            yield failed(
                f"pushes of {who}",
                f"{where} applied {seen.pushes} pushes of {who}; {report.expected_pushes} were expected: "
                f"{abs(seen.pushes - report.expected_pushes)} {what}",
                at=Evidence(FACT, f"{seen.pushes} pushes", str(report.expected_pushes), node=node),
                nodes=tuple(dict.fromkeys((node, nodes.get(seen.index, node)))),
                processes=(f"worker {seen.index}", f"server {report.index}"),
                remedy=f"Inspect the path between {nodes.get(seen.index, seen.host)} and {node}, and their memory.",
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
@given(complete_server_run)
def servers_trained_nothing(job: Job, fleet: Fleet, facts: Facts, run: ServerRun) -> Iterator[Verdict]:
    """After a few training steps all workers read the same parameters, and the model has learned.

    What it checks: SHA-256 of all parameters as each worker pulls them at the end; that every tensor moved and the loss
    of each worker fell; that a single process gets the same parameters from the same data, if it adds pushes and reads
    weights in the order that the servers recorded.

    Why it matters: training over servers can run to its end with exit code 0 while the parameters that workers see
    never change: with Paddle 2.6 a hand-written asynchronous loop takes 100,000 steps and learns nothing.

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
            "pushes "
            "any longer",
            at=Evidence(FACT, f"SHA-256 {digest}", f"SHA-256 {common}", node=node),
            processes=(who,),
            remedy=f"Test memory and network card of {node}, and compare its versions with the other nodes.",
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
    # Single steps are not judged: a worker that runs ahead sees hardly more than its own pushes.
    first, last = report.first_loss, report.last_loss
    if report.steps >= _LEARNING_STEPS and not last < first * MAX_LOSS_RATIO:
        limit = MAX_LOSS_RATIO * first
        yield failed(
            f"training on {where}",
            f"the loss on {where} changed from {first:.4g} to {last:.4g} in {report.steps} steps; "
            f"expected less than {limit:.4g}",
            at=Evidence(FACT, f"{last:.4g}", f"< {limit:.4g}", node=node),
            processes=(f"worker {report.index}",),
            remedy="Compare torch and its numeric libraries on that node with those of the others.",
        )
    difference = report.difference_to_one_process
    if difference == IMPOSSIBLE:
        yield failed(
            "training against one process",
            "the servers' own records show a push of the training that was not added exactly once, or a read of "
            "weights that did not exist yet",
            at=Evidence(FACT, "pushes lost, doubled or out of order", "every push once, in order", node=node),
            nodes=tuple(dict.fromkeys(server for server, _ in run.servers)),
            remedy="See SMK024 and SMK025 first; then test the memory of the servers' nodes.",
        )
    elif difference is not None and not difference <= TOLERANCE:
        yield failed(
            "training against one process",
            f"the parameters after {report.steps} steps of {report.workers} workers differ by {difference:.3g} from "
            f"those of one process on the same data; expected at most {TOLERANCE:g}",
            at=Evidence(FACT, f"{difference:.3g}", f"<= {TOLERANCE:g}", node=node),
            remedy="See SMK024 first; then compare the nodes' numeric libraries.",
        )
