"""Whether servers and workers find each other, belong together, and come to the end."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.blame import names_text
from preflight.culprit import Culprit
from preflight.job import Job
from preflight.judgement import Verdict, check, failed, passed, unknown
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.demands import fold
from preflight_checks.smoke.drilled import drillable
from preflight_checks.smoke.gang_run import details, observed
from preflight_checks.smoke.server_plan import READS, mode_of, plan_servers
from preflight_checks.smoke.server_run import (
    COST,
    FACT,
    PROBES,
    ServerRun,
    blocker,
    server_run_of,
    without_servers,
)
from reference_trainer import phases

_REMEDIES = {
    "missing": "See why nothing starts on {node}: its interpreter and environment are those of the job.",
    "dead": "Look at {node}: its last words are in the evidence; SIGKILL is mostly the out-of-memory killer (dmesg).",
    "stopped": "Continue or end the stopped process on {node} (kill -CONT), and find out who stopped it.",
    "stuck": "Look at the stack of {name} in the evidence: it shows what it waits for.",
    "lost-node": "See whether {node} still runs and can be reached.",
}


@check(
    "SMK021",
    "server-or-worker-did-not-finish",
    plan=plan_servers,
    reads=READS,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#17798", "PaddlePaddle/Paddle#10153"),
)
@drillable("kill", "stop")
def server_or_worker_did_not_finish(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every server and worker of a short training run over parameter servers comes to its end.

    What it checks: the servers and workers that the job starts, each on its node, with the job's own endpoints and in
    its mode (synchronous, asynchronous, geo), train a small dense and sparse model with the job's interpreter. When
    not all come to the end, the one that the others wait for is named by role, index, node and phase: missing, dead,
    stopped, stuck, or lost with its node.

    Why it matters: frameworks do not notice. Trainers of Paddle 2.6 go on to the end without a server and exit with
    0, stall for eight minutes on one that is stopped, and wait for ever for a trainer that is not there.

    Example: server 1 on node-b was killed by SIGKILL during serving; workers 0 to 3 could not go on because of it.

    Fix: look at the named process and node first; its stack or last words stand in the evidence.

    Known limits: the model is small; memory and bandwidth of the real job are not tried. The servers are our
    own, written with torch, or Paddle's where the job's Python has paddle and no torch.

    Evidence: PaddlePaddle/Paddle#17798 (a server's node was down, and the job hung), PaddlePaddle/Paddle#10153.
    """
    run = server_run_of(job, facts)
    early = without_servers(job, fleet, facts, run)
    if early is not None:
        yield early
    elif run.complete:
        nodes = len({record.request.node for record in run.records})
        framework = run.workers[0][1].framework
        own = f"; the servers are those of {framework}" if framework.startswith("paddle") else ""
        where = f"{names_text(run.members)} on {nodes} nodes"
        yield passed(f"parameter-server run: {where} ({mode_of(job, fleet).why}{own})")
    elif run.blamed is None:
        silent = [r.request.node for r in run.records if r.unavailable is not None]
        reasons = dict.fromkeys(r.unavailable.reason for r in run.records if r.unavailable is not None)
        text = f"processes on {fold(silent)} did not finish: {fold(reasons, 2)}"
        yield unknown("parameter-server run", text, required=True)
    elif blocker(run) != "SMK021":
        yield unknown("parameter-server run", f"blocked by {blocker(run)}: {run.blamed.because}")
    else:
        remedy = _REMEDIES.get(run.blamed.kind, "Look at {node}.")
        yield _named(run, run.blamed, "everybody comes to the end", remedy)


def _named(run: ServerRun, blamed: Culprit, expected: str, remedy: str) -> Verdict:
    waiting = [member for number in blamed.waiting if (member := run.member(number)) is not None]
    because = f"; {names_text(waiting)} could not go on because of it" if waiting and blamed.title else ""
    return failed(
        blamed.title or "parameter-server run",
        f"{blamed.because}{because}",
        at=Evidence(FACT, observed(blamed), expected, node=blamed.node, at_s=blamed.since_s),
        also=(*details(run, blamed, FACT), *run.claims),
        nodes=run.nodes,
        remedy=remedy.format(node=blamed.node, name=blamed.title),
    )


@check(
    "SMK022",
    "server-endpoint-unusable",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#13057", "PaddlePaddle/Paddle#9893"),
)
def server_endpoint_unusable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every server can listen at its endpoint, and every worker opens every server's port there.

    What it checks: each server binds its port before torch is imported, and each worker dials all of them from inside
    the job context. What fails makes a matrix: a column is a server that is down or filtered, a row a worker that is
    cut off, a single cell the path between the two. Whoever answers on the port must be a server of this very run.

    Why it matters: frameworks repeat "server not ready" for ever, and name neither the worker nor what is wrong.

    Example: server 1 on node-b listens, but no worker can open its port: 10.0.0.2:6170 is timed-out, seen from node-c,
    node-d.

    Fix: open the port between the nodes; give the servers addresses that the workers can reach; end what holds a port.

    Known limits: connections on one node say nothing about the network and are not counted for it.

    Evidence: PaddlePaddle/Paddle#13057, PaddlePaddle/Paddle#9893 (connections that fail, each told by itself).
    """
    run = server_run_of(job, facts)
    early = without_servers(job, fleet, facts, run)
    if early is not None:
        yield early if not early.required else unknown("server endpoints", "blocked by SMK021: nobody ran")
        return
    blamed = run.blamed
    if blamed is None or blocker(run) != "SMK022":
        opened = [e for e in run.events if e.data.get("event") == phases.DIAL and e.data.get("result") == "open"]
        pairs = {(event.request_key, event.data.get("to")) for event in opened}
        servers = len([member for member in run.members if member.role == "server"])
        others = [member for member in run.members if member.role != "server"]
        if pairs and len(pairs) >= servers * len(others):
            yield passed(f"server endpoints: {servers} opened by {names_text(others)}")
        else:
            yield unknown("server endpoints", f"blocked by {blocker(run)}: not everybody came so far")
        return
    remedy = (
        "See what holds or filters the port (`ss -ltnp` on {node}, firewall rules between the nodes), and what the "
        "endpoint's name resolves to on each worker."
    )
    yield _named(run, blamed, "every worker opens every server's port", remedy)


@check(
    "SMK023",
    "servers-and-workers-told-differently",
    plan=plan_servers,
    probes=PROBES,
    cost=COST,
    when="smoke",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#7422", "PaddlePaddle/Paddle#16138", "PaddlePaddle/Paddle#15038"),
)
def told_differently(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """What servers and workers are told of themselves and of each other fits together.

    What it checks: before torch is imported each process says its role, index, the numbers of servers and workers, the
    list of servers, its own endpoint, and what it would train, all as its launch line and its node's environment have
    it. Compared are indexes that two have or nobody has, numbers, lists and endpoints that differ, endpoints that are
    in no list or no address of their host, roles that do not exist, parameters of other shapes or on other servers.

    Why it matters: with any of these frameworks hang without a word, or part of the parameters is never trained.

    Example: worker 1 on node-d (d:4243) and worker 1 on node-c (c:4242) are both worker 1; nobody is worker 0.

    Fix: give every process the same list and numbers, and an index of its own.

    Known limits: what the job's own program makes of these values is not seen.

    Evidence: PaddlePaddle/Paddle#7422 (another number of trainers), PaddlePaddle/Paddle#16138 and
    PaddlePaddle/Paddle#15038 (endpoints that are not the process's own).
    """
    run = server_run_of(job, facts)
    early = without_servers(job, fleet, facts, run)
    if early is not None:
        yield early if not early.required else unknown("what processes are told", "blocked by SMK021: nobody ran")
        return
    blamed = run.blamed
    if blamed is not None and blocker(run) == "SMK023":
        remedy = "Give every process the same list and numbers, and an index of its own" + _sources(run, blamed)
        yield _named(run, blamed, "everybody is told the same, and an index of their own", remedy)
        return
    hellos = {e.request_key for e in run.events if e.data.get("phase") == phases.STARTED}
    if len(hellos) == len(run.records):
        yield passed(f"what {names_text(run.members)} are told fits together")
    else:
        yield unknown("what processes are told", f"blocked by {blocker(run)}: not everybody said who they are")


def _sources(run: ServerRun, blamed: Culprit) -> str:
    """Where those who do not fit are told so, as the end of a remedy."""
    keys = {member.key for member in run.members if member.rank in (blamed.rank, *blamed.also)}
    said = dict.fromkeys(str(r.request.params.get("source", "")) for r in run.records if r.request.key in keys)
    known = [source.replace("{", "(").replace("}", ")") for source in said if source]
    return f" (look at {fold(known)})." if known else "."
