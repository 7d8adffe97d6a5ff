"""Rendezvous addresses and node ranks that are the same on every node, or differ, where they must not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight._util.hostnames import host_of, is_loopback, is_unspecified
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Relation, Strength, Value, strongest
from preflight.model.job.claim import job_value
from preflight.model.job.value import Symbol, numbers, symbols_in, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight_rules.kubernetes.workloads import Role, workloads
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_one,
    certainly_several,
    nodes_spanned,
    starting_file,
)

#: Shells that evaluate a command on the node where it runs (`srun bash -c '...'`).
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
#: The first node of an allocation, where srun puts rank 0.
_FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'


def address_in_force(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that give the rendezvous address of a launch.

    Arguments of init_process_group and of the launcher count; the default of a script option does not, nor does
    MASTER_ADDR where an agent sets it.
    """
    found = [
        claim
        for claim in job.about("master_addr", launch.scope)
        if claim.relation is Relation.SETS and not (claim.source == "python" and claim.strength is Strength.DEFAULT)
    ]
    if launch.launcher in AGENT_LAUNCHERS or launch.launcher == "deepspeed":
        found = [claim for claim in found if claim.source != "environment"]
    return strongest(found)


def has_no_address(job: Job, launch: Launch) -> bool:
    """Whether a launch has no address and uses the launcher's default."""
    claims = address_in_force(job, launch)
    return bool(claims) and all(claim.strength is Strength.DEFAULT for claim in claims)


def backends(job: Job, launch: Launch) -> frozenset[str]:
    """The rendezvous backends that a launch may use by its options, in lower case."""
    claims = job.setting("rendezvous_backend", launch.scope)
    return frozenset(text.lower() for claim in claims for text in texts(claim.value))


@rule(
    "RDV001",
    "rendezvous-on-loopback",
    severity=Severity.ERROR,
    otherwise="no launch sets both its rendezvous address and its number of nodes",
)
def rendezvous_on_loopback(job: Job) -> Iterator[Verdict]:
    """The rendezvous address of several nodes is loopback or unspecified, so each node reaches only itself.

    What it checks: For a launch over more than one node, that the rendezvous endpoint or master address in force is not
    loopback (127.x.x.x, localhost, ::1) and not the unspecified address (0.0.0.0, ::). The default that torchrun uses
    when no address is given, 127.0.0.1, counts too. A configuration of a launcher (Accelerate's) that no launch names
    is checked in the same way, and then it is a warning.

    Why it matters: Every node but one then dials itself. Nothing listens there, so it waits for the rendezvous timeout,
    or it opens a store of its own and waits for ranks that will never come.

    Example: `torchrun --nnodes=2 --master_addr=localhost ...`.

    Fix: Give the name or address of the node of rank 0, in a Slurm job `$(scontrol show hostnames "$SLURM_JOB_NODELIST"
    | head -n1)`.

    Known limits: Only reported where more than one node is certain, and not for node 0 where the lines of the other
    nodes name another address. Nor where one script starts several nodes side by side on its own machine. A host name
    that resolves to loopback on its own node is a matter for `preflight check`.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        addresses = address_in_force(job, launch)
        if not addresses or not because:
            continue
        verdict = undecided(launch.id, (*because, *addresses), launch)
        if verdict is None and not (
            not certainly_several(nodes)
            or _only_first_node_is_local(job, launch)
            or _all_nodes_are_this_machine(job, launch)
            or _each_node_is_a_group(job, launch)
        ):
            verdict = _rendezvous_verdict(launch, addresses, because)
        yield verdict or passed(launch.id)
    if not job.launches:
        yield from _judge_configurations(job)


def _judge_configurations(job: Job) -> Iterator[Verdict]:
    """Judge a launcher's configuration that no launch names, and which therefore has no command-line options."""
    nodes, addresses = job.requiring("nodes"), job.setting("master_addr")
    if not nodes or not addresses:
        return
    subject = addresses[0].span.path
    verdict = undecided(subject, (*nodes, *addresses))
    hosts = [host_of(text) for claim in addresses for text in texts(claim.value)]
    if verdict is None and not (
        not certainly_several(job_value(nodes)) or not all(is_loopback(h) or is_unspecified(h) for h in hosts)
    ):
        verdict = failed(
            subject,
            f"{quoted(addresses[0])} means the node itself on each of them, but {placed(nodes[0])} makes"
            f" {joined(numbers(job_value(nodes)))} nodes meet there.",
            at=addresses[0],
            also=((nodes[0], f"{joined(numbers(job_value(nodes)))} nodes"),),
            remedy="Give the name or address of the node of rank 0.",
            severity=Severity.WARNING,
        )
    yield verdict or passed(subject)


def _only_first_node_is_local(job: Job, launch: Launch) -> bool:
    """Whether only node 0 uses a local address, which is fine: its store listens on all interfaces."""
    if numbers(job_value(job.setting("node_rank", launch.scope))) != (0,):
        return False
    others = [other for other in job.launches if other.program == launch.program and _node_rank_above_0(job, other)]
    hosts = [texts(job_value(address_in_force(job, other))) for other in others]
    return bool(hosts) and not any(is_loopback(host_of(text)) for found in hosts for text in found)


def _each_node_is_a_group(job: Job, launch: Launch) -> bool:
    """Whether the program makes a group of the GPUs of one node: CFG002 reports that."""
    sizes = job.about("setting.torch_group.world_size", launch.scope)
    return bool(sizes) and all(Symbol.GPU_COUNT in symbols_in(claim.value) for claim in sizes)


def _all_nodes_are_this_machine(job: Job, launch: Launch) -> bool:
    """Whether one script starts this node and another one side by side, without a wrapper that leaves the machine."""
    if not _runs_beside_others_here(launch):
        return False
    own = numbers(job_value(job.setting("node_rank", launch.scope)))
    return bool(own) and any(
        _runs_beside_others_here(other)
        and other.program == launch.program
        and starting_file(other) == starting_file(launch)
        and numbers(job_value(job.setting("node_rank", other.scope))) not in ((), own)
        for other in job.launches
    )


def _runs_beside_others_here(launch: Launch) -> bool:
    return launch.concurrent and not (SPREADING_WRAPPERS | {"ssh"}).intersection(launch.wrappers)


def _node_rank_above_0(job: Job, launch: Launch) -> bool:
    ranks = numbers(job_value(job.setting("node_rank", launch.scope)))
    return bool(ranks) and min(ranks) > 0


def _rendezvous_verdict(launch: Launch, addresses: tuple[Claim, ...], because: tuple[Claim, ...]) -> Verdict:
    hosts = [host_of(text) for claim in addresses for text in texts(claim.value)]
    if not hosts or not all(is_loopback(host) or is_unspecified(host) for host in hosts):
        return passed(launch.id)
    claim, count = addresses[0], joined(numbers(job_value(because)))
    default = claim.strength is Strength.DEFAULT
    option = re.search(r"\(without (--\S+)\)", claim.spelling)
    missing = option[1] if option else "address"
    stated = _with_value(claim, hosts[0])
    if default:
        stated = f"{launch.launcher} is given no {missing} and falls back to {hosts[0]}"
    if is_unspecified(hosts[0]):
        meaning = "is not an address that can be dialled"
    else:
        meaning = "means the node itself on each of them"
    return failed(
        launch.id,
        f"{stated}{', which' if default else ''} {meaning}, but {placed(because[0])} makes"
        f" {count} nodes meet there: all but one will wait until rendezvous times out.",
        at=launch if default else claim,
        also=((because[0], f"{count} nodes"),),
        remedy="Give the name or address of the node of rank 0"
        + (f" with {missing}" if default and option else "")
        + f"; in a Slurm job: {_FIRST_HOST}.",
        waits_at="rendezvous",
    )


def _with_value(claim: Claim, host: str) -> str:
    """The claim as written, followed by its host where the text does not show it."""
    if re.search(rf"{re.escape(host)}\s*,", claim.spelling):
        return f"`{host}`, the first of {quoted(claim)},"
    # A value read from a file does not appear in the text of the line.
    return quoted(claim) if host in claim.spelling or "$" in claim.spelling else f"{quoted(claim)} ({host})"


#: The start of a double-quoted assignment in a script.
_ASSIGNED = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*=\"[^\"]*$")


#: `bash -c 'cd work; `: single quotes leave expansion to that shell.
_SINGLE_QUOTED = re.compile(r"\b(?:ba|da|z)?sh\s+(?:-\w+\s+)*-\w*c\s+'[^']*$")


def evaluated_on_each_node(launch: Launch) -> bool | None:
    """Whether `$(hostname)` in this launch's line is evaluated once per node; None if unknown.

    `srun torchrun --master_addr=$(hostname)` is expanded by the batch script, once; `srun bash -c '...'` lets the shell
    of each node expand it.
    """
    spreading = [i for i, name in enumerate(launch.wrappers) if name in SPREADING_WRAPPERS]
    if not spreading:
        return None
    if any(name in _SHELLS for name in launch.wrappers[spreading[0] + 1 :]):
        return True
    before = launch.span.snippet[: launch.span.column - 1]
    if _SINGLE_QUOTED.search(before):
        return True
    # `LAUNCHER="torchrun ... $X"` is expanded where it is assigned, unless the dollar sign is escaped.
    if _ASSIGNED.match(before):
        return False
    # On one line with srun and without a quotation mark between them, no other shell expands it.
    wrapper = max((before.rfind(name) for name in SPREADING_WRAPPERS), default=-1)
    if wrapper >= 0 and not set("'\"") & set(before):
        return False
    return None


@rule(
    "RDV002",
    "rendezvous-address-differs-per-node",
    severity=Severity.ERROR,
    otherwise="no launch uses the name of the node that it runs on",
)
def rendezvous_address_differs_per_node(job: Job) -> Iterator[Verdict]:
    """Every node uses its own address as the common rendezvous address.

    What it checks: Where a shell runs on each node (`srun bash -c '...'`), that the address given there is not the name
    or address of the node it runs on (`$(hostname)`, `$HOSTNAME`, `$(hostname -I)`).

    Why it matters: Each node opens a rendezvous of its own and waits for the others until it times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --rdzv_endpoint=$(hostname):29500 ...'`.

    Fix: Find the address once, in the batch script before srun, and export it: `export MASTER_ADDR=$(scontrol show
    hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: The same words directly under srun, without a shell in between, are expanded once by the batch script
    and are correct.
    """
    for launch in job.launches:
        nodes, because = _nodes_started(job, launch)
        addresses = [c for c in address_in_force(job, launch) if _names_own_node(c)]
        if not addresses or not because:
            continue
        inner = evaluated_on_each_node(launch)
        if inner is None and SPREADING_WRAPPERS.intersection(launch.wrappers) and _is_batch_job(job):
            # A batch script expands it to the first host of the allocation.
            inner = True
        if inner is None or not numbers(nodes):
            yield unknown(launch.id, f"{quoted(addresses[0])} may differ between nodes", at=addresses[0])
        elif inner and certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is evaluated on each of the {joined(numbers(nodes))} nodes and gives"
                " a different host each time, so every node waits at its own rendezvous.",
                at=addresses[0],
                also=((because[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Find the address once in the batch script, before srun, and export it"
                + (f": export MASTER_ADDR={_FIRST_HOST}." if _is_batch_job(job) else "."),
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)


def _nodes_started(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """The number of nodes that start the line, where known; otherwise the number that it expects."""
    sets = job.setting("nodes", launch.scope)
    return (job_value(sets), sets) if numbers(job_value(sets)) else nodes_spanned(job, launch)


def _is_batch_job(job: Job) -> bool:
    return any(claim.source == "slurm" and not claim.scope.launch for claim in job.claims)


def _names_own_node(claim: Claim) -> bool:
    return bool(symbols_in(claim.value) & {Symbol.THIS_HOST, Symbol.THIS_ADDRESS})


#: What starts its command on every node.
_STARTERS = frozenset({"srun", "pdsh", "clush"})


@rule(
    "RDV003",
    "node-rank-same-on-every-node",
    severity=Severity.ERROR,
    otherwise="no launcher with a node rank is started on several nodes",
)
def node_rank_same_on_every_node(job: Job) -> Iterator[Verdict]:
    """Every node gets the same node rank: it is a fixed number, or the batch script expands it itself.

    What it checks: For a launcher that srun, pdsh or clush starts on several nodes with a static rendezvous, that its
    node rank differs between nodes: not a fixed number, and not SLURM_NODEID or SLURM_PROCID expanded before srun runs.
    For equal pods of a role of Kubernetes, that it is not a fixed number.

    Why it matters: In the batch script both variables are 0, so every node claims to be node 0: the ranks collide, or
    all but one wait for the others until rendezvous times out.

    Example: `srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID ...`, where the batch shell expands the variable.

    Fix: Let a shell on the node expand it: `srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`, or use
    `--rdzv_backend=c10d`, which needs no node rank.

    Known limits: With the c10d backend the node rank is ignored, so nothing is reported. A node rank that a script on
    the node computes is not followed.
    """
    by_id = {launch.id: launch for launch in job.launches}
    for role, scope in ((role, scope) for workload in workloads(job) for role, scope in workload.launches()):
        verdict = _fixed_in_role(job, role, by_id[scope.launch]) if scope.launch in by_id else None
        if verdict is not None:
            yield verdict
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        starts = _STARTERS.intersection(launch.wrappers)
        if launch.launcher not in AGENT_LAUNCHERS or not starts or not ranks or not because:
            continue
        if has_no_address(job, launch) and ranks[0].strength is Strength.DEFAULT:
            # The missing rendezvous address of such a line is reported first.
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        if why_unresolved((*because, *backend), launch) is not None:
            claim, why = why_unresolved((*because, *backend), launch) or (ranks[0], "")
            yield unknown(launch.id, f"{quoted(claim)} is unknown: {why}", at=claim)
        elif not certainly_several(nodes) or backends(job, launch) - {"static"}:
            yield passed(launch.id)
        else:
            yield _node_rank(job, launch, ranks[0], because[0], joined(numbers(nodes)))


def _fixed_in_role(job: Job, role: Role, launch: Launch) -> Verdict | None:
    """The verdict on a launch line of several equal pods that gives a number as its node rank; None for any other."""
    ranks = [c for c in job.setting("node_rank", launch.scope) if c.strength > Strength.DEFAULT]
    pods, stated = numbers(role.count.value), job.requiring("nodes", launch.scope)
    if not ranks or not numbers(ranks[0].value) or not pods or min(pods) < 2 or backends(job, launch) - {"static"}:
        return None
    if not certainly_several(job_value(stated)) or why_unresolved((*ranks, *stated), launch) is not None:
        return None
    return failed(
        launch.id,
        f"{quoted(ranks[0])} is the node rank of each of the {joined(pods)} pods of {role.name or 'this object'}, but"
        f" {quoted(stated[0])} needs every rank once: the others wait.",
        at=ranks[0],
        also=((role.count, "equal pods"),),
        remedy="Take the rank from the index of the pod (JOB_COMPLETION_INDEX, the ordinal in its name), or use"
        " --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _starter(launch: Launch) -> str:
    return next(name for name in launch.wrappers if name in _STARTERS)


def _tasks(job: Job, launch: Launch) -> tuple[Claim, ...]:
    return job.setting("tasks_per_node", launch.scope)


def _local_rank(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
    """Report SLURM_LOCALID as node rank: it is 0 on every node, wherever it is expanded."""
    return failed(
        launch.id,
        f"{quoted(rank)} counts the tasks within a node, so it is 0 on every node that srun starts, but "
        f"{quoted(stated)} needs ranks 0 to {int(max(numbers(stated.value))) - 1}, each once.",
        at=rank,
        also=((stated, "needs each rank once"),),
        remedy="Use $SLURM_NODEID, expanded by a shell on the node, or use --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _no_rank(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{launch.launcher} has no node rank and uses 0 on every node that {_starter(launch)} starts, but"
        f" {quoted(stated)} needs ranks 0 to {int(max(numbers(stated.value))) - 1}, each once: all nodes will wait.",
        at=rank,
        also=((stated, "needs each rank once"),),
        remedy="Use --rdzv_backend=c10d --rdzv_endpoint=<first node>:<port>, which needs no rank, or give each node its"
        " rank: srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'.",
        waits_at="rendezvous",
    )


def _node_rank(job: Job, launch: Launch, rank: Claim, stated: Claim, count: str) -> Verdict:
    granted = job.setting("nodes", launch.scope)
    if not granted or not certainly_several(job_value(granted)):
        return unknown(launch.id, f"cannot determine on how many nodes {_starter(launch)} starts it", at=launch)
    if job.setting("single_node_step", launch.scope):
        # `srun -n1 -w "$node" torchrun --node_rank=$i`: one step for each node, each with its own rank.
        return passed(launch.id)
    fixed = numbers(rank.value)
    if rank.strength is Strength.DEFAULT:
        return _no_rank(launch, rank, stated)
    early = bool(symbols_in(rank.value) & {Symbol.NODE_RANK, Symbol.PROCESS_RANK})
    if Symbol.LOCAL_RANK in symbols_in(rank.value) and certainly_one(job_value(_tasks(job, launch))):
        return _local_rank(launch, rank, stated)
    before = rank.span.snippet[: rank.span.column - 1]
    elsewhere = rank.span.line != launch.span.line and bool(set("'\"") & set(before))
    if early and ("\\$" in rank.span.snippet or elsewhere):
        return unknown(launch.id, f"cannot determine where {quoted(rank)} is expanded", at=rank)
    inner = evaluated_on_each_node(launch)
    if early and inner:
        return passed(launch.id)
    if early and inner is None:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} is expanded on the node", at=rank)
    if len(fixed) != 1 and not early:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    if "srun" not in launch.wrappers and not fixed:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    seen = "is expanded by the batch script, where it is 0," if early else f"is {fixed[0]}"
    return failed(
        launch.id,
        f"{quoted(rank)} {seen} on every node that {_starter(launch)} starts, but {quoted(stated)} needs ranks 0 to"
        f" {int(max(numbers(stated.value))) - 1}, each once.",
        at=rank,
        also=((stated, f"{count} nodes"), (launch, "started on each node")),
        remedy="Let a shell on the node expand it (`srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`),"
        " or use --rdzv_backend=c10d, which needs no node rank.",
    )
