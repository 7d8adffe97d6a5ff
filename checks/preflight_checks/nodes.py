"""Whether every node of the job can be reached at all."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Known
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet, NodeRecord
from preflight.request import Request

#: What to do, by `NodeRecord.problem_kind`; the executors' own words stand in the message.
_REMEDIES = {
    "timeout": "See whether {node} is up, its port is not filtered and large packets are not lost on the way;"
    " `{command}` must answer within seconds.",
    "denied": "Let this user log in to {node} without a question: `{command}` must print `true` and ask nothing.",
    "missing": "Install Python 3.8 or newer on {node}, or name its interpreter.",
    "unresolved": "Correct the host name, or add {node} to DNS or /etc/hosts here.",
}
_OTHERWISE = "Make `{command}` work from here, or take {node} out of the job's host list."


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from ()


@check(
    "NOD001",
    "node-unreachable",
    plan=_plan,
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
        command = f"ssh -o BatchMode=yes -- {address} true"
        remedy = _REMEDIES.get(record.problem_kind, _OTHERWISE)
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
    severity=Severity.WARNING,
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html",),
)
def node_count_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The nodes looked at are as many as the job runs on.

    What it checks: the number of nodes given (--hosts, --hostfile, or the job's own list) is the one that the job's
    launches over several nodes ask for.

    Why it matters: a node nobody looked at may be the one that hangs the job, and a launch that waits for more
    nodes than there are never begins.

    Example: `--nnodes=4` in the script, and `--hosts node[1-3]`.

    Fix: name all nodes of the job in rank order, or correct the number in the script.

    Known limits: launches that ask for different numbers, and elastic ranges, are left alone.

    Evidence: the documentation of torchrun: a launch waits for the number of nodes it was told.
    """
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
    yield failed(
        job.name,
        f"`{claim.spelling}` runs the job on {wanted} nodes, but {given} {'was' if given == 1 else 'were'} given to "
        f"look at: {'the others were not looked at' if given < wanted else 'the rest is not part of the job'}",
        at=claim,
        remedy=f"Name the job's {wanted} nodes in rank order (--hosts, --hostfile), or correct `{claim.spelling}`.",
    )
