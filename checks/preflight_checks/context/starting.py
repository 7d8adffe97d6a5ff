"""Whether the job's launcher can start ranks on the other nodes: logins, tools, and what becomes of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.job.hostname import is_hostname
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Node, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.context.surroundings import bare
from preflight_checks.context.ways import Way, claims_of, in_batch, ways
from preflight_checks.demands import fold, named, stand_ins, unseen
from preflight_checks.majority import split
from preflight_checks.probes.launching import Login, Tool, logins, tools

#: So many other nodes are logged in to from the first one; of more, these are spread over the fleet.
MOST_LOGINS = 64
#: Launchers that each node starts for itself, by the program of their name.
_ON_EACH_NODE = ("torchrun", "accelerate", "composer", "colossalai", "llamafactory-cli", "fleetrun")


def first_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[Node | None, bool]:
    """The node on which the launcher runs, and whether that is certain: a batch script runs on the first one."""
    master = fleet.master
    if master is None:
        return None, False
    inside = bare(facts).get(master.name)
    return master, in_batch(job) or (inside is not None and "SLURM_JOB_ID" in inside.variables)


def applying_ways(job: Job, fleet: Fleet) -> tuple[Way, ...]:
    return tuple(ways(job)) if len(fleet.nodes) > 1 and not stand_ins(fleet) else ()


def _targets(job: Job, fleet: Fleet, first: Node) -> dict[str, str]:
    """The other nodes by the name the launcher has for them, a spread of them where there are very many."""
    spelled: dict[str, str] = {}
    for claim in job.about("hosts"):
        for value in claim.alternatives:
            for host in value if isinstance(value, tuple) else ():
                node = named(fleet, str(host))
                if node is not None and is_hostname(str(host)):
                    spelled.setdefault(node.name, str(host))
    # Of nodes that gave no agent NOD001 speaks.
    others = [node for node in fleet.reached if node.name != first.name]
    step = max(1, -(-len(others) // MOST_LOGINS))
    return {spelled.get(node.name, node.name): node.name for node in others[::step] if is_hostname(node.name)}


def _plan_logins(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    logging_in = [way for way in applying_ways(job, fleet) if way.logs_in]
    first, _ = first_node(job, fleet, facts)
    if not logging_in or first is None or first.name not in {node.name for node in fleet.reached}:
        return
    params = {"targets": tuple(_targets(job, fleet, first)), "options": logging_in[0].ssh_options}
    claims = claims_of(job, logging_in[0])
    yield Request(probe_name(logins), first.name, params, because=claims, deadline_s=9.0)


@check(
    "RMT001",
    "launcher-cannot-log-in",
    plan=_plan_logins,
    probes=(logins,),
    cost="one ssh to each other node from the first one, 8 at once, at most 7.5 seconds; runs `true` there",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#1481", "deepspeedai/DeepSpeed#4370"),
)
def launcher_cannot_log_in(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A launcher that starts ranks over ssh can log in from the first node to all others without a question.

    What it checks: where deepspeed, mpirun, horovodrun or pdsh start the ranks, `ssh -o BatchMode=yes` from the job's
    first node to every other one, with the options that decide about host keys as the launcher gives them.

    Why it matters: one host that asks for a password or does not know a key keeps the launcher waiting, or it starts
    the others without it.

    Example: the key of node1 is missing from ~/.ssh/authorized_keys on node3.

    Fix: make `ssh -o BatchMode=yes node3 true` work on the first node.

    Known limits: a warning where the job may be started from another machine, such as the one that preflight runs on,
    from where logins are known to work. Of more than 64 other nodes a spread of them is tried.

    Evidence: deepspeedai/DeepSpeed#1603, deepspeedai/DeepSpeed#1481, deepspeedai/DeepSpeed#4370.
    """
    applying = [way for way in applying_ways(job, fleet) if way.logs_in]
    first, certain = first_node(job, fleet, facts)
    if not applying or first is None:
        yield not_applicable("logins between nodes", "no launcher of the job logs in to other nodes")
        return
    seen = facts.of(logins, first.name)
    if isinstance(seen, Unavailable):
        reason = "blocked by NOD001" if seen.kind == "blocked" and first not in fleet.reached else seen.reason
        yield unknown(f"logins from {first.name}", reason)
        return
    by = applying[0].by
    targets = _targets(job, fleet, first)
    told: dict[str, list[Login]] = {}
    for login in seen.value.logins:
        if login.exit_code != 0:
            told.setdefault(_why(login), []).append(login)
    for why, failing in told.items():
        nodes = tuple(targets.get(login.target, login.target) for login in failing)
        yield _no_login(first, by, why, failing, nodes, claims_of(job, applying[0]), certain=certain)
    if seen.value.untried:
        yield unknown(f"logins to {fold(seen.value.untried)}", "the time did not suffice to try them")
    if len(targets) < len(fleet.nodes) - 1:
        yield unknown("logins to all nodes", f"{len(targets)} of {len(fleet.nodes) - 1} nodes were tried")
    if not told and seen.value.logins:
        yield passed(f"logins from {first.name} to {len(seen.value.logins)} nodes")


def _why(login: Login) -> str:
    """What ssh said, without the name of the host, so that one fault of many hosts is one finding."""
    lines = [line for line in login.said.splitlines() if line.strip()]
    if login.exit_code is None:
        return lines[-1] if lines else "no answer in time"
    said = lines[-1] if lines else f"it ended with {login.exit_code}"
    return re.sub(r"\S*@?" + re.escape(login.target) + r"\S*", "HOST", said)


def _no_login(
    first: Node,
    by: str,
    why: str,
    failing: list[Login],
    nodes: tuple[str, ...],
    claims: tuple[Claim, ...],
    *,
    certain: bool,
) -> Verdict:
    target = failing[0].target
    known_hosts = "known_hosts" in why or "host key" in why.lower()
    remedy = (
        f"On {first.name}, log in to {fold(nodes)} once by hand and decide about the host key."
        if known_hosts
        else f"On {first.name}, make `ssh -o BatchMode=yes {target} true` work: put its public key into "
        f"~/.ssh/authorized_keys on {fold(nodes)}."
    )
    elsewhere = "" if certain else f" Started from another machine, {by} needs these logins from there."
    return failed(
        f"logins from {first.name} to {fold(nodes)}",
        f"{by} logs in from {first.name} to {fold(nodes)}, which does not work without a question: {why}.{elsewhere}",
        at=Evidence("ssh", failing[0].said or why, "it runs `true`", f"ssh -o BatchMode=yes {target} true", first.name),
        also=claims,
        nodes=nodes,
        remedy=remedy,
        severity=None if certain else Severity.WARNING,
        confidence=None if certain else Confidence.MEDIUM,
    )


def _wanted_tools(job: Job, fleet: Fleet, facts: Facts) -> Iterator[tuple[Node, tuple[str, ...], bool, str]]:
    """Which tools each node needs, whether in the ranks' context, and what for."""
    first, _ = first_node(job, fleet, facts)
    for way in applying_ways(job, fleet):
        for node in fleet.reached:
            names = way.first if first is not None and node.name == first.name else way.others
            if names:
                yield node, names, False, way.by
    each = tuple(
        dict.fromkeys(
            launch.launcher
            for launch in job.launches
            if launch.launcher in _ON_EACH_NODE and re.search(rf"(^|[\s\"'=]){launch.launcher}\b", launch.span.snippet)
        )
    )
    for node in fleet.reached if each else ():
        yield node, each, True, "the job's start script"


def _plan_tools(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node, names, context, _ in _wanted_tools(job, fleet, facts):
        yield Request(
            probe_name(tools), node.name, {"names": names, "beside": context}, context=context, deadline_s=8.0
        )


@check(
    "RMT002",
    "launcher-tool-missing",
    plan=_plan_tools,
    probes=(tools,),
    cost="looks for a few programs on PATH, and runs `pdsh -V`, `ssh -V` or `mpirun --version`, at most 3 seconds",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1481", "deepspeedai/DeepSpeed#4370", "https://www.open-mpi.org/faq/?category=rsh"),
)
def launcher_tool_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The programs that start the ranks are there on the nodes that need them, and answer.

    What it checks: pdsh, mpirun, horovodrun and ssh on the node where the job is started, Open MPI's daemon on the
    others in a shell without a terminal, and torchrun and its like where every node starts its own.

    Why it matters: the launcher stops with "command not found" on one node, after it has started the others.

    Example: `orted` is on the PATH of a login shell only, because ~/.bashrc returns early without a terminal.

    Fix: install the tool, or give mpirun `--prefix` or its whole path.

    Known limits: tools that a module or a container provides are seen only in the ranks' context. Where a tool is on no
    node at all, set-up lines may provide it, and it is a warning; so it is on the first node where the job may be
    started from another machine.

    Evidence: deepspeedai/DeepSpeed#1481, deepspeedai/DeepSpeed#4370; Open MPI FAQ on rsh and PATH.
    """
    wanted = list(_wanted_tools(job, fleet, facts))
    if not wanted:
        yield not_applicable("launcher tools", "nothing in the job names a program that starts ranks")
        return
    yield from unseen(facts, tools, "launcher tools")
    found: dict[tuple[str, str], dict[str, Tool]] = {}
    paths: dict[str, str] = {}
    purposes = {(name, context): by for _, names, context, by in wanted for name in names}
    for seen in facts.each(tools):
        if not isinstance(seen.fact, Observed):
            continue
        paths[seen.node] = seen.fact.value.search_path
        for tool in seen.fact.value.tools:
            by = purposes.get((tool.name, seen.asked.context))
            if by is not None:
                found.setdefault((tool.name, by), {})[seen.node] = tool
    _, certain = first_node(job, fleet, facts)
    wrong = False
    for (name, by), held in found.items():
        lacking = tuple(node for node, tool in held.items() if not tool.path)
        if lacking:
            wrong = True
            yield _lacking(name, by, lacking, held, paths, certain=certain)
        late = {node: tool for node, tool in held.items() if tool.problem}
        for problem in dict.fromkeys(tool.problem for tool in late.values()):
            nodes = [node for node, tool in late.items() if tool.problem == problem]
            yield unknown(f"{name} on {fold(nodes)}", problem)
        versions = split({node: tool.version for node, tool in held.items() if tool.version})
        if versions is not None and versions.odd:
            wrong = True
            node, version = versions.first_odd
            yield failed(
                f"{name}: version",
                f"{name} is of different versions: {versions.spoken}",
                at=Evidence("launcher tool", version, versions.common, f"{held[node].path} --version", node),
                nodes=tuple(versions.odd),
                remedy=f"Install one version of {name} on all nodes.",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
            )
    if found and not wrong:
        yield passed(f"launcher tools: {fold(sorted({name for name, _ in found}))}")


def _lacking(
    name: str, by: str, nodes: tuple[str, ...], held: dict[str, Tool], paths: dict[str, str], *, certain: bool
) -> Verdict:
    everywhere = len(nodes) == len(held)
    spoken = " or ".join(name.split("|"))
    has = [node for node, tool in held.items() if tool.path]
    sure = bool(has) or certain
    return failed(
        f"{name} on {fold(nodes)}",
        f"{spoken}, which {by} needs, is not to be found on {fold(nodes)}"
        + (f", and is {held[has[0]].path} on {fold(has, 4)}" if has else "")
        + ("" if sure else "; set-up lines, or the machine the job is started from, may have it"),
        at=Evidence("launcher tool", f"PATH={paths[nodes[0]]}", name, f"command -v {name.split('|')[0]}", nodes[0]),
        nodes=nodes,
        remedy=f"Install {spoken} on {fold(nodes)}, or put its folder on the PATH of a shell without a terminal.",
        severity=None if sure and not (everywhere and not certain) else Severity.WARNING,
        confidence=None if sure and not (everywhere and not certain) else Confidence.MEDIUM,
    )
