"""Checks that servers and workers connect, agree with each other, and complete."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.agent import rank_events
from preflight.analysis.culprit import Culprit
from preflight.analysis.culprit_model import UNFINISHED, names_text
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, passed, unknown
from preflight_checks.requirements.hosts import fold
from preflight_checks.smoke.framework import framework_of
from preflight_checks.smoke.group_run import details, observed
from preflight_checks.smoke.injected_fault import may_fail_by_injection
from preflight_checks.smoke.server_plan import PLAN_PROBES, mode_of, plan_servers
from preflight_checks.smoke.server_run import (
    COST,
    FACT,
    PROBES,
    ServerRun,
    blocker,
    missing_server_run,
    server_run_of,
)

_REMEDIES = {
    "missing": "Find out why no process starts on {node}; it uses the job's interpreter and environment.",
    "dead": "Check {node}: its last output is in the evidence; SIGKILL usually comes from the out-of-memory killer "
    "(dmesg).",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out what stopped it.",
    "stuck": "Read the stack of {name} in the evidence: it shows what the process waits for.",
    "lost-node": "Check whether {node} is still running and reachable.",
}


@check(
    "SMK021",
    "server-or-worker-did-not-finish",
    plan=plan_servers,
    reads=PLAN_PROBES,
    probes=PROBES,
    cost=COST,
    when="smoke",
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
        remedy = _REMEDIES.get(run.culprit.kind, "Check {node}.")
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
        remedy=remedy.format(node=culprit.node, name=culprit.title),
    )


@check(
    "SMK022",
    "server-endpoint-unusable",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
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


@check(
    "SMK023",
    "servers-and-workers-told-differently",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
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
