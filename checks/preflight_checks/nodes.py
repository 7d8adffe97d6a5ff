"""Checks that every node of the job can be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.job.value import items, known_number
from preflight.model.recording import HEAD_PAUSED, Facts, Fleet, NodeRecord, Unavailable
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import no_requests
from preflight_checks.requirements import find_node, fold, is_literal, is_single_machine, nodes_share_machine, scopes

#: Remedies by `NodeRecord.problem_kind`; the message quotes the executor.
_REMEDIES = {
    "timeout": "Check that {node} is up, its port is not filtered and large packets arrive; `{command}` must "
    "respond within seconds. If logging in is merely slow, give it more time with --open-deadline.",
    "denied": "Let this user log in to {node}: `{command}` must succeed without a prompt.",
    "missing": "Install Python 3.8 or newer on {node}, or name its interpreter.",
    "unresolved": "Correct the host name, or add {node} to DNS or /etc/hosts here.",
}
#: Commands that reach a node by the same method as preflight.
_COMMANDS = {
    "ssh": "ssh -o BatchMode=yes -- {address} true",
    "slurm": "srun --overlap -N1 -n1 -w {address} true",
    "mpi": "mpirun -np 1 --host {address} true",
    "kubernetes": "kubectl describe pod {address}",
    "ray": "ray list nodes",
}
#: Remedies for executors without logins.
_NO_LOGIN_REMEDIES = {
    "kubernetes": "Check what `{command}` reports about it; the pod must run before anything can be started in it.",
    "ray": "Check what `{command}` reports, and rejoin the node to the cluster (`ray start --address=...`).",
}
_DEFAULT_REMEDY = "Make `{command}` work from here, or remove {node} from the job's host list."


@check("NOD001", "node-unreachable", plan=no_requests, severity=Severity.ERROR)
def node_unreachable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node of the job can be reached.

    What it checks: the agent of each expected node starts within the deadline.

    Why it matters: one node that never starts leaves all others waiting in rendezvous, silently, until a timeout of 10
    to 30 minutes; none of them names the missing node.

    Example: node3 of four is down; torchrun on the other three nodes prints nothing.

    Fix: bring the node back, allow the login, or remove it from the host list and reduce the number of nodes.

    Known limits: a node may respond here and still be cordoned by the scheduler.
    """
    hosts = job.about("hosts")[:1]
    for record in fleet.records:
        if not record.problem:
            yield passed(record.node.name)
            continue
        address = record.node.address or record.node.name
        command = _COMMANDS.get(fleet.executor, _COMMANDS["ssh"]).format(address=address)
        remedy = _NO_LOGIN_REMEDIES.get(fleet.executor) or _REMEDIES.get(record.problem_kind, _DEFAULT_REMEDY)
        problem = record.problem.removeprefix(f"{record.node.name}: ")
        if record.problem_kind == HEAD_PAUSED:
            yield unknown(record.node.name, problem, nodes=(record.node.name,), required=True)
            continue
        yield failed(
            record.node.name,
            f"{_node_text(record)} cannot be reached: {problem}",
            at=Evidence("agent", problem, "an answer", command, record.node.name),
            also=hosts,
            remedy=remedy.format(node=record.node.name, command=command),
        )


def _node_text(record: NodeRecord) -> str:
    node = record.node
    return f"{node.name} (at {node.address})" if node.address not in ("", node.name) else node.name


#: The report of the agent, or of Python in a probe, on a node that cannot start processes or threads.
_NO_PROCESS = re.compile(r"cannot start a process|can't start new thread|Resource temporarily unavailable")
#: Kinds of missing facts that are not an answer of the node. The others say that something is not there, not permitted,
#: or depends on something else.
_UNANSWERED = ("crashed", "timeout", "cancelled")
#: Fewer requests than this show nothing about the node.
_MIN_REQUESTS = 3


@check("NOD006", "node-not-examined", plan=no_requests, severity=Severity.ERROR)
def node_not_examined(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A node that was reached can be examined.

    What it checks: the share of requests to each node that got no result. It is an error if the node could not start
    processes for most requests; for any other reason, the result is unknown.

    Why it matters: a node that cannot start a process for a probe cannot start one for a rank. A list of checks without
    results must not look like a pass.

    Example: pids.max of the session's control group is 6, and five of them are in use by the login itself.

    Fix: raise the limit that the message names, or end the processes there.

    Known limits: requests in the job context and of later stages are not counted.
    """
    question_counts: dict[str, int] = {}
    silent: dict[str, list[Unavailable]] = {}
    refused: dict[str, list[Unavailable]] = {}
    for record in facts.records:
        if not record.request.context and not record.request.peers:
            question_counts[record.request.node] = question_counts.get(record.request.node, 0) + 1
            if record.unavailable is not None:
                kept = silent if record.unavailable.kind in _UNANSWERED else refused
                kept.setdefault(record.request.node, []).append(record.unavailable)
    examined = 0
    for entry in fleet.records:
        name = entry.node.name
        if entry.problem or name not in question_counts:
            continue
        missing = silent.get(name, [])
        if len(missing) + len(refused.get(name, ())) == question_counts[name]:
            # It answered, and gave no fact at all.
            missing = [*missing, *refused.get(name, ())]
        without_process = [item for item in missing if _NO_PROCESS.search(f"{item.reason} {item.detail}")]
        few = len(missing) < _MIN_REQUESTS and len(missing) < question_counts[name]
        if few or 2 * len(missing) <= question_counts[name]:
            examined += 1
            if without_process:
                yield unknown(f"processes of {name}", without_process[0].reason, nodes=(name,), required=True)
            continue
        share = f"{len(missing)} of {question_counts[name]} requests"
        if len(missing) >= _MIN_REQUESTS and 2 * len(without_process) > len(missing):
            yield failed(
                name,
                f"{name} was reached, but it could not start a process for {share}: {without_process[0].reason}",
                at=Evidence(
                    "processes",
                    without_process[0].reason,
                    "a new process",
                    "cat /sys/fs/cgroup/pids.max; ulimit -u",
                    name,
                ),
                remedy="Check pids.max of the session's control group, `ulimit -u -n` and "
                f"/proc/sys/kernel/threads-max on {name}, and end the processes that exhaust them.",
            )
        else:
            reason = f"{share} got no result: {missing[0].reason}"
            yield unknown(name, reason, nodes=(name,), required=len(missing) >= _MIN_REQUESTS)
    if examined:
        yield passed(f"{examined} node{'s' * (examined != 1)}")
    elif not fleet.reached:
        yield unknown("nodes", "no node was reached")


@check("NOD002", "node-count-differs", plan=no_requests, severity=Severity.ERROR)
def node_count_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The number of examined nodes equals the number that the job runs on.

    What it checks: the number of nodes given (--hosts, --hostfile, an allocation, or the job's own list) equals the
    number that the job's multi-node launches request. An allocation with too few nodes is an error, any other
    difference a warning; nodes that were not given also make the verdict incomplete.

    Why it matters: an unexamined node may be the one that hangs the job, and a launch that waits for too many nodes
    never begins.

    Example: `--nnodes=4` in the script, and `--hosts node[1-3]`.

    Fix: name all nodes of the job in rank order, or correct the number in the script.

    Known limits: launches that request different numbers, and elastic ranges, are not judged.
    """
    if not fleet.records:
        yield unknown(job.name, "the job has no nodes")
        return
    provided = len(fleet.records)
    requested = {}
    for launch in job.launches:
        count = known_number(job.value("nodes", launch.scope))
        if count is not None and count > 1:
            requested[count] = launch
    if len(requested) != 1:
        yield not_applicable(job.name, "no multi-node launch gives its number of nodes, or the launches disagree")
        return
    ((expected, launch),) = requested.items()
    if expected == provided:
        yield passed(job.name)
        return
    claim = (job.setting("nodes", launch.scope) or job.requirement_claims("nodes", launch.scope))[0]
    origin = fleet.origin
    if origin is not None and origin.source == "executor" and provided < expected and not nodes_share_machine(fleet):
        yield failed(
            job.name,
            f"`{claim.spelling}` waits for {expected} nodes, but {origin.words} has only {provided}, "
            f"{fold(node.name for node in fleet.nodes)}: {_ranks(provided, expected)} missing, so the launch never "
            "starts",
            at=claim,
            remedy=f"Request {expected} nodes, or correct `{claim.spelling}`.",
            waits_at="rendezvous",
        )
        return
    yield failed(
        job.name,
        f"`{claim.spelling}` runs the job on {expected} nodes, but {provided} {'was' if provided == 1 else 'were'} "
        f"given: {'the others were not examined' if provided < expected else 'the others are not part of the job'}",
        at=claim,
        remedy=f"Name the job's {expected} nodes in rank order (--hosts, --hostfile), or correct `{claim.spelling}`.",
        severity=Severity.WARNING,
    )
    if provided < expected and not is_single_machine(fleet):
        missing = expected - provided
        yield unknown(
            f"{missing} of the job's {expected} nodes",
            f"fewer nodes were given, so nothing is known about {'this one' if missing == 1 else 'these'}",
            required=True,
        )


def _ranks(first: int, end: int) -> str:
    return f"node rank {first} is" if end - first == 1 else f"node ranks {first} to {end - 1} are"


@check("NOD003", "no-nodes-to-look-at", plan=no_requests, severity=Severity.ERROR)
def no_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The scheduler, cluster or launcher provides a list of nodes.

    What it checks: the scheduler, cluster or launcher through which nodes are reached returned a list of nodes.

    Why it matters: without a list, no node was examined, which must not look like a pass.

    Example: no node of the partition is free, or the Slurm controller does not respond.

    Fix: follow the reason; or name nodes that can be reached, with --hosts and --on ssh.

    Known limits: the reason is the scheduler's; other checks show whether the request can ever be met.
    """
    if fleet.origin is None:
        yield not_applicable(job.name, "the list of nodes is not from a scheduler or cluster")
    elif fleet.origin.problem:
        yield unknown(f"nodes of {fleet.origin.words}", fleet.origin.problem, required=True)
    else:
        yield passed(job.name)


@check("NOD004", "named-node-not-in-allocation", plan=no_requests, severity=Severity.WARNING)
def named_node_absent(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node that the job's own files name belongs to the allocation or cluster.

    What it checks: if a scheduler lists the nodes, the hosts in the job's files (hostfile, endpoints) are among them,
    by full or short name.

    Why it matters: a launcher that is given a node outside the allocation is rejected there, or waits for it.

    Example: a hostfile that was written for an earlier allocation names node7, but the current one has node[1-4].

    Fix: generate the list from the allocation (`scontrol show hostnames`), or request the nodes by name.

    Known limits: addresses are not compared with names, and a list that is used only elsewhere also counts.
    """
    origin = fleet.origin
    if origin is None or origin.source != "executor" or nodes_share_machine(fleet) or not fleet.records:
        yield not_applicable(job.name, "no allocation or cluster lists the nodes")
        return
    listed = tuple(dict.fromkeys(host for host in _listed_hosts(job) if not is_literal(host) and not is_loopback(host)))
    if not listed:
        yield not_applicable(job.name, "the job's files name no nodes")
        return
    absent = [host for host in listed if find_node(fleet, host) is None]
    if not absent:
        yield passed(job.name)
        return
    claim = job.about("hosts")[0]
    yield failed(
        f"{job.name}: hosts",
        f"the job's files name {fold(absent)}, but {origin.words} has {fold(node.name for node in fleet.nodes)}",
        at=claim,
        nodes=tuple(absent),
        remedy="Use the allocation's list of hosts, or request these nodes by name.",
        confidence=Confidence.MEDIUM,
    )


def _listed_hosts(job: Job) -> Iterator[str]:
    for scope in scopes(job):
        yield from (host.rpartition("@")[2] for host in items(job.value("hosts", scope)))
