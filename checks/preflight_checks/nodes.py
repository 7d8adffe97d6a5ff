"""Whether every node of the job can be reached at all."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Known
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, NodeRecord
from preflight.request import Request
from preflight_checks.demands import fold, is_literal, is_loopback, named, scopes, stand_ins

#: What to do, by `NodeRecord.problem_kind`; the executors' own words stand in the message.
_REMEDIES = {
    "timeout": "See whether {node} is up, its port is not filtered and large packets are not lost on the way;"
    " `{command}` must answer within seconds.",
    "denied": "Let this user log in to {node} without a question: `{command}` must print `true` and ask nothing.",
    "missing": "Install Python 3.8 or newer on {node}, or name its interpreter.",
    "unresolved": "Correct the host name, or add {node} to DNS or /etc/hosts here.",
}
#: How a person reaches a node on the same way as preflight did.
_COMMANDS = {
    "ssh": "ssh -o BatchMode=yes -- {address} true",
    "slurm": "srun --overlap -N1 -n1 -w {address} true",
    "mpi": "mpirun -np 1 --host {address} true",
    "kubernetes": "kubectl describe pod {address}",
    "ray": "ray list nodes",
}
#: What to do where nobody logs in.
_ELSEWHERE = {
    "kubernetes": "See what `{command}` says of it; the pod has to run before anything can be started in it.",
    "ray": "See what `{command}` says of it, and have the node join the cluster again (`ray start --address=...`).",
}
_OTHERWISE = "Make `{command}` work from here, or take {node} out of the job's host list."


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from ()


@check(
    "NOD001",
    "node-unreachable",
    plan=_plan,
    probes=(),
    cost="nothing beyond reaching the node",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#1481"),
)
def node_unreachable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node of the job answers.

    What it checks: each expected node gave an agent within the deadline.

    Why it matters: one node that never starts leaves all others waiting in rendezvous, silently, until a
    time-out of 10 to 30 minutes; none of them names the missing one.

    Example: node3 of four is down; torchrun on the other three prints nothing.

    Fix: bring the node back, allow the login, or remove it from the host list and lower the number of nodes.

    Known limits: a node may answer here and still be cordoned by the scheduler.

    Evidence: deepspeedai/DeepSpeed#1603, deepspeedai/DeepSpeed#1481.
    """
    hosts = job.about("hosts")[:1]
    for record in fleet.records:
        if not record.problem:
            yield passed(record.node.name)
            continue
        address = record.node.address or record.node.name
        command = _COMMANDS.get(fleet.executor, _COMMANDS["ssh"]).format(address=address)
        remedy = _ELSEWHERE.get(fleet.executor) or _REMEDIES.get(record.problem_kind, _OTHERWISE)
        problem = record.problem.removeprefix(f"{record.node.name}: ")
        yield failed(
            record.node.name,
            f"{_who(record)} cannot be reached: {problem}",
            at=Evidence("agent", problem, "an answer", command, record.node.name),
            also=hosts,
            nodes=(record.node.name,),
            remedy=remedy.format(node=record.node.name, command=command),
        )


def _who(record: NodeRecord) -> str:
    node = record.node
    return f"{node.name} (at {node.address})" if node.address not in ("", node.name) else node.name


@check(
    "NOD002",
    "node-count-differs",
    plan=_plan,
    probes=(),
    cost="nothing beyond reaching the node",
    severity=Severity.ERROR,
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html",),
)
def node_count_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The nodes looked at are as many as the job runs on.

    What it checks: the number of nodes given (--hosts, --hostfile, an allocation, or the job's own list) is the one
    that the job's launches over several nodes ask for. An allocation with too few is an error, anything else a warning.

    Why it matters: a node nobody looked at may be the one that hangs the job, and a launch that waits for more
    nodes than there are never begins.

    Example: `--nnodes=4` in the script, and `--hosts node[1-3]`.

    Fix: name all nodes of the job in rank order, or correct the number in the script.

    Known limits: launches that ask for different numbers, and elastic ranges, are left alone.

    Evidence: the documentation of torchrun: a launch waits for the number of nodes it was told.
    """
    if not fleet.records:
        yield unknown(job.name, "there are no nodes to count")
        return
    given = len(fleet.records)
    asked = {}
    for launch in job.launches:
        value = job.value("nodes", launch.scope)
        if isinstance(value, Known) and isinstance(value.value, int) and value.value > 1:
            asked[value.value] = launch
    if len(asked) != 1:
        yield not_applicable(job.name, "no launch over several nodes says how many, or they do not agree")
        return
    ((wanted, launch),) = asked.items()
    if wanted == given:
        yield passed(job.name)
        return
    claim = (job.setting("nodes", launch.scope) or job.requiring("nodes", launch.scope))[0]
    origin = fleet.origin
    if origin is not None and origin.source == "executor" and given < wanted and not stand_ins(fleet):
        yield failed(
            job.name,
            f"`{claim.spelling}` waits for {wanted} nodes, but {origin.words} holds only {given}, "
            f"{fold(node.name for node in fleet.nodes)}: {_ranks(given, wanted)} missing, and the launch never begins",
            at=claim,
            remedy=f"Ask for {wanted} nodes, or correct `{claim.spelling}`.",
            waits_at="rendezvous",
        )
        return
    yield failed(
        job.name,
        f"`{claim.spelling}` runs the job on {wanted} nodes, but {given} {'was' if given == 1 else 'were'} given to "
        f"look at: {'the others were not looked at' if given < wanted else 'the rest is not part of the job'}",
        at=claim,
        remedy=f"Name the job's {wanted} nodes in rank order (--hosts, --hostfile), or correct `{claim.spelling}`.",
        severity=Severity.WARNING,
    )


def _ranks(first: int, end: int) -> str:
    return f"node rank {first} is" if end - first == 1 else f"node ranks {first} to {end - 1} are"


@check(
    "NOD003",
    "no-nodes-to-look-at",
    plan=_plan,
    probes=(),
    cost="nothing beyond finding the nodes",
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/resource_limits.html",),
)
def no_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Whoever was asked which nodes there are could say it.

    What it checks: the scheduler, the cluster or the launcher through which nodes are reached gave a list of them.

    Why it matters: without nodes nothing of them was looked at, which must not look like a pass.

    Example: no node of the partition is free, or the Slurm controller does not answer.

    Fix: what the reason says; or name nodes that can be reached, with --hosts and --on ssh.

    Known limits: the reason is the scheduler's; other checks say whether its request can ever be met.

    Evidence: Slurm's documentation of limits: a request beyond them waits in the queue without an error.
    """
    if fleet.origin is None:
        yield not_applicable(job.name, "nobody was asked which nodes there are")
    elif fleet.origin.problem:
        yield unknown(f"nodes of {fleet.origin.words}", fleet.origin.problem, required=True)
    else:
        yield passed(job.name)


@check(
    "NOD004",
    "named-node-not-in-allocation",
    plan=_plan,
    probes=(),
    cost="nothing beyond finding the nodes",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/srun.html",),
)
def named_node_absent(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node that the job's own files name belongs to the allocation or cluster.

    What it checks: where the scheduler says which nodes there are, the hosts that the job's files list (hostfile,
    endpoints) are among them, by full or short name.

    Why it matters: a launcher that was told a node outside of the allocation is refused there, or waits for it.

    Example: a hostfile written for the last allocation names node7, and this one holds node[1-4].

    Fix: write the list from the allocation (`scontrol show hostnames`), or ask for the nodes by name.

    Known limits: addresses are not compared with names, and a list that is only read elsewhere counts, too.

    Evidence: srun's documentation of --nodelist: within an allocation it can only choose among its nodes.
    """
    origin = fleet.origin
    if origin is None or origin.source != "executor" or stand_ins(fleet) or not fleet.records:
        yield not_applicable(job.name, "no allocation or cluster said which nodes there are")
        return
    listed = tuple(dict.fromkeys(host for host in _listed(job) if not is_literal(host) and not is_loopback(host)))
    if not listed:
        yield not_applicable(job.name, "the job's files name no nodes")
        return
    absent = [host for host in listed if named(fleet, host) is None]
    if not absent:
        yield passed(job.name)
        return
    claim = job.about("hosts")[0]
    yield failed(
        f"{job.name}: hosts",
        f"the job's files name {fold(absent)}, but {origin.words} holds {fold(node.name for node in fleet.nodes)}",
        at=claim,
        nodes=tuple(absent),
        remedy="Write the list of hosts from the allocation, or ask for these nodes by name.",
        confidence=Confidence.MEDIUM,
    )


def _listed(job: Job) -> Iterator[str]:
    for scope in scopes(job):
        value = job.value("hosts", scope)
        if isinstance(value, Known) and isinstance(value.value, tuple):
            yield from (str(host).rpartition("@")[2] for host in value.value)
