"""Checks that servers and workers connect, agree with each other, and complete, also after a worker was replaced."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from preflight.analysis.culprit_model import UNFINISHED, names_text
from preflight.analysis.rank_state import build_views
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import requests_for
from preflight_checks.requirements import fold
from preflight_checks.smoke.group_run import details, observed, remedy_for_dead
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.ranks import framework_of
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
from reference_trainer.ps.run_report import Replacement
from reference_trainer.ps.settings import EXACT_READ

_REMEDIES = {
    "missing": "Find out why no process starts on {node}; it uses the job's interpreter and environment.",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of {name} in the evidence: it shows what the process waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
}
#: What to do if all processes hang together, or several lost their connections, and none is named.
_REMEDY_FOR_NOBODY = "Check the path between the nodes; the link checks test each pair separately."


@server_check(
    "SMK021",
    "server-or-worker-did-not-finish",
    reads=PLAN_PROBES,
    severity=Severity.ERROR,
    evidence=(("a server's node was down, and the job hung", "PaddlePaddle/Paddle#17798"), "PaddlePaddle/Paddle#10153"),
)
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


@server_check(
    "SMK022",
    "server-endpoint-unusable",
    severity=Severity.ERROR,
    evidence=(
        "PaddlePaddle/Paddle#13057",
        ("connections that fail, each reported separately", "PaddlePaddle/Paddle#9893"),
    ),
)
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


@server_check(
    "SMK023",
    "servers-and-workers-told-differently",
    severity=Severity.ERROR,
    evidence=(
        ("another number of trainers", "PaddlePaddle/Paddle#7422"),
        "PaddlePaddle/Paddle#16138",
        ("endpoints that are not the process's own", "PaddlePaddle/Paddle#15038"),
    ),
)
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


@check(
    "SMK028",
    "worker-replaced",
    plan=plan_with_backup,
    cost=COST,
    when="smoke",
    severity=Severity.INFO,
    evidence=(
        ("failed worker restarts, cannot connect to ps-lite scheduler again", "apache/mxnet#2268"),
        (
            "ps-lite's van.cc gives the place of a dead node to one that comes later",
            "https://github.com/dmlc/ps-lite/blob/master/src/van.cc",
        ),
    ),
)
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
