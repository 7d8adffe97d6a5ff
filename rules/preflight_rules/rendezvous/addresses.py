"""Rendezvous addresses, ports and node ranks: no host names, and the same or different on nodes as they must be."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight._util.hostnames import host_of, is_loopback, is_unspecified
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Relation, Span, Strength, Unresolved, Value, strongest
from preflight.model.job.claim import job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import Symbol, affixes_of, is_expanded_in_script, numbers, symbols_in, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, launches_with
from preflight_rules.kubernetes.workloads import Role, workloads
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_one,
    certainly_several,
    nodes_spanned,
    on_first_node_only,
    ranks_started,
    starting_file,
)

#: Shells that evaluate a command on the node where it runs (`srun bash -c '...'`).
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
#: The first node of an allocation, where srun puts rank 0.
_FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'


def address_in_force(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims that give the rendezvous address of a launch.

    Arguments of init_process_group and of the launcher count. A script option's default does not, nor does MASTER_ADDR
    if an agent sets it.
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
    """Return whether a launch has no address and uses the launcher's default."""
    claims = address_in_force(job, launch)
    return bool(claims) and all(claim.strength is Strength.DEFAULT for claim in claims)


def backends(job: Job, launch: Launch) -> frozenset[str]:
    """Return the rendezvous backends that a launch may use by its options, in lower case."""
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

    What it checks: For a launch over more than one node, that the effective rendezvous endpoint or master address is
    not loopback (127.x.x.x, localhost, ::1) and not the unspecified address (0.0.0.0, ::). The default that torchrun
    uses when no address is given, 127.0.0.1, counts too. A launcher's configuration (Accelerate's) that no launch names
    is checked in the same way, with a warning.

    Why it matters: Every node but one then dials itself. Nothing listens there, so the node waits for the rendezvous
    timeout, or opens its own store and waits for ranks that will never come.

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
            f"{quoted(addresses[0])} means the local node on every node, but {placed(nodes[0])} makes"
            f" {joined(numbers(job_value(nodes)))} nodes meet there.",
            at=addresses[0],
            also=((nodes[0], f"{joined(numbers(job_value(nodes)))} nodes"),),
            remedy="Give the name or address of the node of rank 0.",
            severity=Severity.WARNING,
        )
    yield verdict or passed(subject)


def _only_first_node_is_local(job: Job, launch: Launch) -> bool:
    """Return whether only node 0 uses a local address, which is fine: its store listens on all interfaces."""
    if numbers(job_value(job.setting("node_rank", launch.scope))) != (0,):
        return False
    others = [other for other in job.launches if other.program == launch.program and _node_rank_above_0(job, other)]
    hosts = [texts(job_value(address_in_force(job, other))) for other in others]
    return bool(hosts) and not any(is_loopback(host_of(text)) for found in hosts for text in found)


def _each_node_is_a_group(job: Job, launch: Launch) -> bool:
    """Return whether the program creates a group of one node's GPUs, which CFG002 reports."""
    sizes = job.about("setting.torch_group.world_size", launch.scope)
    return bool(sizes) and all(Symbol.GPU_COUNT in symbols_in(claim.value) for claim in sizes)


def _all_nodes_are_this_machine(job: Job, launch: Launch) -> bool:
    """Return whether one script starts this node and another one side by side, without leaving the machine."""
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
    stated = _text_with_host(claim, hosts[0])
    if default:
        stated = f"{launch.launcher} has no {missing} and falls back to {hosts[0]}"
    if is_unspecified(hosts[0]):
        meaning = "is not an address that can be dialled"
    else:
        meaning = "means the local node on every node"
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


def _text_with_host(claim: Claim, host: str) -> str:
    """Return the claim as written, followed by its host if the text does not show it."""
    if re.search(rf"{re.escape(host)}\s*,", claim.spelling):
        return f"`{host}`, the first of {quoted(claim)},"
    # A value read from a file does not appear in the text of the line.
    return quoted(claim) if host in claim.spelling or "$" in claim.spelling else f"{quoted(claim)} ({host})"


#: The start of a double-quoted assignment in a script.
_ASSIGNED = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*=\"[^\"]*$")


#: `bash -c 'cd work; `: single quotes leave expansion to that shell.
_SINGLE_QUOTED = re.compile(r"\b(?:ba|da|z)?sh\s+(?:-\w+\s+)*-\w*c\s+'[^']*$")


def evaluated_on_each_node(launch: Launch) -> bool | None:
    """Return whether `$(hostname)` in this launch's line is evaluated once per node; None if unknown.

    The batch script expands `srun torchrun --master_addr=$(hostname)` once; with `srun bash -c '...'` each node's shell
    expands it.
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

    Why it matters: Each node opens its own rendezvous and waits for the others until it times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --rdzv_endpoint=$(hostname):29500 ...'`.

    Fix: Find the address once, in the batch script before srun, and export it: `export MASTER_ADDR=$(scontrol show
    hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: The same words directly under srun, without a shell in between, are expanded once by the batch script
    and are correct.
    """
    for launch in job.launches:
        nodes, because = _nodes_started(job, launch)
        own = {Symbol.THIS_HOST, Symbol.THIS_ADDRESS}
        addresses = [c for c in address_in_force(job, launch) if symbols_in(c.value) & own]
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
    """Return the number of nodes that start the line if known, otherwise the number that it expects."""
    sets = job.setting("nodes", launch.scope)
    return (job_value(sets), sets) if numbers(job_value(sets)) else nodes_spanned(job, launch)


def _is_batch_job(job: Job) -> bool:
    return any(claim.source == "slurm" and not claim.scope.launch for claim in job.claims)


#: Commands that start their command on every node.
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
    For equal pods of a Kubernetes role, that the node rank is not a fixed number.

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
        verdict = _role_verdict(job, role, by_id[scope.launch]) if scope.launch in by_id else None
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
            yield _node_rank_verdict(job, launch, ranks[0], because[0], joined(numbers(nodes)))


def _role_verdict(job: Job, role: Role, launch: Launch) -> Verdict | None:
    """Return the verdict on a fixed node rank in a launch line of several equal pods; None for any other line."""
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
        remedy="Derive the rank from the pod's index (JOB_COMPLETION_INDEX, the ordinal in its name), or use"
        " --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _starter_name(launch: Launch) -> str:
    return next(name for name in launch.wrappers if name in _STARTERS)


def _local_rank_verdict(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
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


def _missing_rank_verdict(launch: Launch, rank: Claim, stated: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{launch.launcher} has no node rank and uses 0 on every node that {_starter_name(launch)} starts, but"
        f" {quoted(stated)} needs ranks 0 to {int(max(numbers(stated.value))) - 1}, each once: all nodes will wait.",
        at=rank,
        also=((stated, "needs each rank once"),),
        remedy="Use --rdzv_backend=c10d --rdzv_endpoint=<first node>:<port>, which needs no rank, or give each node its"
        " rank: srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'.",
        waits_at="rendezvous",
    )


def _node_rank_verdict(job: Job, launch: Launch, rank: Claim, stated: Claim, count: str) -> Verdict:
    granted = job.setting("nodes", launch.scope)
    if not granted or not certainly_several(job_value(granted)):
        return unknown(launch.id, f"cannot determine on how many nodes {_starter_name(launch)} starts it", at=launch)
    if job.setting("single_node_step", launch.scope):
        # `srun -n1 -w "$node" torchrun --node_rank=$i`: one step for each node, each with its own rank.
        return passed(launch.id)
    fixed = numbers(rank.value)
    if rank.strength is Strength.DEFAULT:
        return _missing_rank_verdict(launch, rank, stated)
    early = bool(symbols_in(rank.value) & {Symbol.NODE_RANK, Symbol.PROCESS_RANK})
    if Symbol.LOCAL_RANK in symbols_in(rank.value) and certainly_one(
        job_value(job.setting("tasks_per_node", launch.scope))
    ):
        return _local_rank_verdict(launch, rank, stated)
    before = rank.span.snippet[: rank.span.column - 1]
    elsewhere = rank.span.line != launch.span.line and bool(set("'\"") & set(before))
    certainly = is_expanded_in_script(rank.value) and "srun" in launch.wrappers
    if early and not certainly and ("\\$" in rank.span.snippet or elsewhere):
        return unknown(launch.id, f"cannot determine where {quoted(rank)} is expanded", at=rank)
    inner = evaluated_on_each_node(launch)
    if early and inner and not certainly:
        return passed(launch.id)
    if early and inner is None and not certainly:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} is expanded on the node", at=rank)
    if len(fixed) != 1 and not early:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    if "srun" not in launch.wrappers and not fixed:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    seen = "is expanded by the batch script, where it is 0," if early else f"is {fixed[0]}"
    return failed(
        launch.id,
        f"{quoted(rank)} {seen} on every node that {_starter_name(launch)} starts, but {quoted(stated)} needs ranks 0 "
        f"to"
        f" {int(max(numbers(stated.value))) - 1}, each once.",
        at=rank,
        also=((stated, f"{count} nodes"), (launch, "started on each node")),
        remedy="Let a shell on the node expand it (`srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`),"
        " or use --rdzv_backend=c10d, which needs no node rank.",
    )


# Rendezvous addresses and ports: no host names, not the nodes' own names, or different between nodes at run time.


#: Values that are no host name or address, and the fault in words.
_FAULTS = (
    (re.compile(r"[^@\s]+@[^@\s]+"), "carries a user name, as for ssh"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+"), "is a URL"),
    (re.compile(r"(?:\S+[,;]\s*)+\S+"), "is a list of hosts"),
    (re.compile(r"\S+(?:\s+\S+)+"), "contains several words"),
)


@rule(
    "RDV029",
    "rendezvous-address-is-no-host",
    severity=Severity.ERROR,
    otherwise="no launch gives the address of its rendezvous",
    each=launches_with(lambda job, scope: address_in_force(job, job.launch(scope.launch))),
)
def rendezvous_address_is_no_host(question: LaunchQuestion) -> Verdict | None:
    """The rendezvous address is not a valid host name.

    What it checks: The address at which the nodes meet (`--master_addr`, `main_process_ip`, MASTER_ADDR where it is in
    force) carries no user name (`user@host`), scheme (`http://`), or second host.

    Why it matters: No resolver knows such a name. Every node waits for the rendezvous, or stops because the name is not
    known.

    Example: `main_process_ip: ubuntu@10.0.0.4`.

    Fix: Give the bare host name or address of the node of rank 0.

    Known limits: Only addresses that are written out are judged.
    """
    addresses, launch = question.claims, question.of.launch
    faults = [(claim, fault) for claim in addresses if (fault := _address_fault(claim))]
    if len(faults) < len(addresses):
        return None
    claim, fault = faults[0]
    return failed(
        question.subject,
        f"The address of the rendezvous, {quoted(claim)}, {fault}: no node can resolve it.",
        at=claim,
        also=((launch, "started here"),),
        remedy="Give the bare host name or address of the node of rank 0.",
        waits_at="rendezvous",
    )


def _address_fault(claim: Claim) -> str:
    """Return the fault of every alternative of an address; empty if there is none."""
    found = [next((fault for form, fault in _FAULTS if form.fullmatch(text)), "") for text in texts(claim.value)]
    return found[0] if found and all(found) else ""


@rule(
    "RDV008",
    "rendezvous-host-is-no-nodes-own-name",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no torchrun launch names a host for c10d",
)
def rendezvous_host_is_no_nodes_own_name(job: Job) -> Iterator[Verdict]:
    """The c10d endpoint uses a name that is not the node's own host name.

    What it checks: With `--rdzv_backend=c10d` on several nodes, that the endpoint's host is the name of a node as the
    scheduler gives it, not that name with a prefix or suffix (`${HEAD}i`, `ib-$HEAD`), and is in the job's own list of
    hosts.

    Why it matters: Every torchrun compares the endpoint with its own host name, and the one that finds itself opens the
    store. With an alias (of the InfiniBand interface, for example) no node does: all dial, and the rendezvous never
    forms.

    Example: `HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)i` and `--rdzv_endpoint=$HEAD:6000`.

    Fix: Give the name that `hostname` prints on that node, or its address; or choose the node that opens the store with
    `--rdzv_conf=is_host=1` on that node and `is_host=0` on the others.

    Known limits: An alias that resolves to the address of the node's own name is accepted by torch; `preflight check`
    resolves the names. A domain after the name (`$HEAD.cluster.local`) is assumed to be correct.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        nodes, because = nodes_spanned(job, launch)
        hosts = [c for c in job.setting("master_addr", launch.scope) if c.source == "torchrun"]
        if not hosts or not because or texts(job_value(backend)) != ("c10d",):
            continue
        verdict = undecided(launch.id, (*because, *backend), launch)
        if verdict is None and not (not certainly_several(nodes) or _names_host(job, launch)):
            verdict = _host_verdict(job, launch, hosts[0])
        yield verdict or passed(launch.id)


def _names_host(job: Job, launch: Launch) -> bool:
    claims = job.setting("rendezvous_conf", launch.scope)
    return any(not texts(claim.value) or "is_host" in texts(claim.value)[0] for claim in claims)


def _host_verdict(job: Job, launch: Launch, claim: Claim) -> Verdict:
    remedy = "Give the name that `hostname` prints there, or the node's address, or --rdzv_conf=is_host=1 on that node."
    symbols = symbols_in(claim.value)
    prefix, suffix = affixes_of(claim.value)
    if Symbol.FIRST_ALLOCATED_HOST in symbols and (prefix or (suffix and not suffix.startswith("."))):
        return failed(
            launch.id,
            f"{quoted(claim)} is the first host's name with `{prefix or suffix}` {'before' if prefix else 'after'}"
            f" it: torchrun compares the endpoint with the node's own host name to decide which node opens the"
            f" store, and no node has this name.",
            at=claim,
            remedy=remedy,
        )
    if Symbol.FIRST_ALLOCATED_HOST in symbols or Symbol.FIRST_ALLOCATED_ADDRESS in symbols:
        return passed(launch.id)
    names = texts(claim.value)
    if not names:
        return unknown(launch.id, f"cannot determine which host {quoted(claim)} names", at=claim)
    listed = [c for c in job.setting("hosts", launch.scope) if c.alternatives]
    known = {str(host) for c in listed for value in c.alternatives if isinstance(value, tuple) for host in value}
    if known and not any(_is_among(host_of(name), known) for name in names):
        return failed(
            launch.id,
            f"{quoted(claim)} names {host_of(names[0])}, which is not one of the hosts of {placed(listed[0])}: no"
            " torchrun matches it, so no node opens the store.",
            at=claim,
            also=((listed[0], "the job's hosts"),),
            remedy=remedy,
        )
    return passed(launch.id)


def _is_among(host: str, known: set[str]) -> bool:
    """Return whether a host is in the list by name or first label. An address may be any listed host."""
    if is_loopback(host) or host.replace(".", "").isdecimal() or ":" in host:
        return True
    short = host.partition(".")[0].lower()
    return short in {name.partition(".")[0].lower() for name in known}


@rule(
    "RDV009",
    "node-names-may-not-resolve",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no launch names a c10d endpoint",
)
def node_names_may_not_resolve(job: Job) -> Iterator[Verdict]:
    """The nodes meet at an IP address, but the ranks connect to a host name that may not resolve.

    What it checks: If several nodes meet by c10d at an endpoint that is written as an address, that `--local-addr` (or
    PET_LOCAL_ADDR) sets the address that each node advertises.

    Why it matters: Without it torchrun passes the ranks the host name that rank 0's node has for itself. Where names do
    not resolve between nodes, as an endpoint by address suggests, the rendezvous forms and the process group then
    hangs.

    Example: `PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=10.2.0.7:36123 PET_NNODES=2` without PET_LOCAL_ADDR.

    Fix: `--local-addr=$(hostname -I | cut -d" " -f1)` on each node, or names that all nodes resolve.

    Known limits: Whether the names resolve is checked by `preflight check`; where they do, nothing is wrong.
    """
    for launch in job.launches:
        backend, hosts = job.setting("rendezvous_backend", launch.scope), job.setting("master_addr", launch.scope)
        if launch.launcher != "torchrun" or texts(job_value(backend)) != ("c10d",) or not hosts:
            continue
        nodes, because = nodes_spanned(job, launch)
        verdict = undecided(launch.id, (*because, *hosts), launch)
        if (
            verdict is None
            and certainly_several(nodes)
            and _is_address(hosts[0])
            and not job.setting("local_addr", launch.scope)
        ):
            verdict = _address_verdict(launch.id, hosts[0])
        yield verdict or passed(launch.id)
    if not job.launches:
        variables = {name: job.setting(f"env.PET_{name}") for name in ("RDZV_BACKEND", "RDZV_ENDPOINT", "NNODES")}
        if all(variables.values()):
            several = certainly_several(job_value(variables["NNODES"]))
            c10d = texts(job_value(variables["RDZV_BACKEND"])) == ("c10d",)
            endpoint = variables["RDZV_ENDPOINT"][0]
            if several and c10d and _is_address(endpoint) and not job.setting("env.PET_LOCAL_ADDR"):
                yield _address_verdict(job.name, endpoint)
            else:
                yield passed(job.name)


def _is_address(claim: Claim) -> bool:
    found = [host_of(text) for text in texts(claim.value)]
    return bool(found) and all(
        host.count(".") == 3 and host.replace(".", "").isdecimal() and not is_loopback(host) and host != "0.0.0.0"
        for host in found
    )


def _address_verdict(subject: str, claim: Claim) -> Verdict:
    return failed(
        subject,
        f"{quoted(claim)} gives an address, but the ranks connect to the host name of the node of rank 0: if it"
        " does not resolve on other nodes, they hang after the rendezvous.",
        at=claim,
        remedy="Give each node's own address with --local-addr (PET_LOCAL_ADDR), or make sure that names resolve.",
    )


_PORTS = ("master_port", "rendezvous_endpoint", "rendezvous_id")


@rule(
    "RDV020",
    "rendezvous-on-submission-host",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch uses the submission host as rendezvous",
)
def rendezvous_on_submission_host(job: Job) -> Iterator[Verdict]:
    """The rendezvous address is the host that the job was submitted from.

    What it checks: The rendezvous or master address is not `$SLURM_SUBMIT_HOST`, `$PBS_O_HOST` or `$LSB_SUB_HOST`.

    Why it matters: That is the login node. No rank runs there, so nothing listens, and all ranks wait until the
    rendezvous times out.

    Example: `srun torchrun --nnodes=4 --rdzv_endpoint=$SLURM_SUBMIT_HOST:29500 train.py`.

    Fix: Use the first host of the allocation, in Slurm `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: Where jobs are submitted from inside an allocation the submitting host may be a node of the job, so
    this is a warning.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        addresses = [c for c in address_in_force(job, launch) if Symbol.SUBMISSION_HOST in symbols_in(c.value)]
        if not addresses:
            continue
        undecided_verdict = undecided(launch.id, because, launch, quantity="nodes")
        if undecided_verdict is not None or not because:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is {Symbol.SUBMISSION_HOST.value}, usually a login node where no rank runs:"
                " nothing will listen there.",
                at=addresses[0],
                also=((because[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Give the first host of the allocation; in a Slurm job:"
                ' $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1).',
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)


@rule(
    "RDV021", "rendezvous-port-random-on-each-node", severity=Severity.ERROR, otherwise="no launch draws a random port"
)
def rendezvous_port_random_on_each_node(job: Job) -> Iterator[Verdict]:
    """Every node, or every task, chooses its own random port for the common rendezvous.

    What it checks: If a shell runs on each node or in each task, its master port, endpoint and id of the rendezvous do
    not come from `$RANDOM`, `uuidgen`, the time or a search for a free port.

    Why it matters: The nodes dial different ports. Only the master's own ranks find each other; the rest wait until the
    rendezvous times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --master_port=$((20000 + RANDOM % 1000)) ...'`.

    Fix: Choose the port once, in the batch script before srun, and export it; or derive it from the job id, which is
    the same everywhere: `$((20000 + SLURM_JOB_ID % 10000))`.

    Known limits: A script that is started manually on each node (it takes its node rank from the caller) gives a
    warning, because a wrapper around it may set the port. So do tasks without a rank, and a function whose name
    suggests a search for a free port.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        random_port = _random_port(job, launch)
        if random_port is None:
            continue
        if launch.launcher not in AGENT_LAUNCHERS:
            yield from _task_verdicts(job, launch, random_port)
            continue
        undecided_verdict = undecided(launch.id, because, launch, quantity="nodes")
        if undecided_verdict is not None or not because:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif not certainly_several(nodes):
            yield passed(launch.id)
        else:
            yield _port_on_each_node_verdict(job, launch, random_port, joined(numbers(nodes)))


def _random_port(job: Job, launch: Launch) -> Claim | None:
    """Return the claim that draws the rendezvous port from a random number, the time or a search for a free port."""
    for quantity in _PORTS:
        for claim in job.setting(quantity, launch.scope):
            if _is_drawn(claim):
                return claim
    return None


#: Expressions that draw a number or look for a free port, and names of such functions.
_DRAWS = re.compile(
    r"\bS?RANDOM\b|\b(?:EPOCH)?SECONDS\b|\bshuf\b|\buuid(?:gen)?\b|\bdate\b|\bsocket\b|random|(?:free|find|get|open|unused)\w*port"
)
_FUNCTION_OUTPUT = re.compile(r"the output of `\w+`")


def _is_drawn(claim: Claim) -> bool:
    """Return whether a value is a random number, the time, or the output of a search for a free port."""
    if symbols_in(claim.value) & {Symbol.RANDOM_NUMBER, Symbol.TIME}:
        return True
    output = isinstance(claim.value, Unresolved) and claim.value.why.startswith("the output of")
    return output and _DRAWS.search(claim.spelling) is not None


#: Commands, as written, that start a command on each node or in each task.
_SPREADS = re.compile(rf"\b(?:{'|'.join(sorted(SPREADING_WRAPPERS | {'ssh'}))})\b")


def _draw_span(job: Job, launch: Launch, claim: Claim) -> Span | None:
    """Return where a value is drawn: in the claim, or where a variable in it is set; None if unknown."""
    if _DRAWS.search(claim.spelling) is not None:
        return claim.span
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", claim.spelling)
    set_by = [found for name in names for found in job.about(f"env.{name}", launch.scope)]
    drawing = (found.span for found in set_by if _is_drawn(found) and _DRAWS.search(found.spelling) is not None)
    # What another script does not get through its environment, it sets itself.
    is_own = bool(names) and not set_by and bool(launch.started_at) and launch.started_at[0].path != claim.span.path
    return next(drawing, claim.origin or (claim.span if is_own else None))


def _is_drawn_inside(job: Job, launch: Launch, claim: Claim) -> bool | None:
    """Return whether the script or shell that draws a value runs on each node or in each task; None if unknown."""
    place, drawn = _draw_span(job, launch, claim), None
    for index, start in enumerate(launch.started_at):
        if _SPREADS.search(start.snippet) is None or place is None:
            continue
        drawn = False
        begin, end = (start.line, start.column), (start.end_line, start.end_column)
        within = place.path == start.path and begin <= (place.line, place.column) <= end
        inner = {launch.span.path, *(later.path for later in launch.started_at[index + 1 :])} - {start.path}
        if within or place.path in inner:
            return True
    return drawn


def _task_verdicts(job: Job, launch: Launch, random_port: Claim) -> Iterator[Verdict]:
    """Yield the verdict on tasks that are ranks: `srun bash wrapper.sh`, or `ssh $host bash rank.sh` in a loop."""
    ranks, because = ranks_started(job, launch.scope)
    alike = sum(other.span == launch.span for other in job.launches)
    if not SPREADING_WRAPPERS.intersection((launch.launcher, *launch.wrappers)) and alike < _MIN_TASKS:
        return
    if not _is_drawn_inside(job, launch, random_port):
        yield passed(launch.id)
        return
    if random_port.condition:
        yield unknown(launch.id, f"whether each task reaches {quoted(random_port)} is unknown", at=random_port)
        return
    verdict = undecided(launch.id, because, launch, quantity="ranks") if alike < _MIN_TASKS else None
    if verdict is None and (certainly_several(ranks) or alike >= _MIN_TASKS):
        numbered = any(job.about(f"env.{name}", launch.scope) for name in ("RANK", "WORLD_SIZE"))
        by_name = isinstance(random_port.value, Unresolved) and _FUNCTION_OUTPUT.match(random_port.value.why)
        count = f"the {joined(numbers(ranks))} tasks" if certainly_several(ranks) else "the tasks"
        verdict = failed(
            launch.id,
            f"{quoted(random_port)} is drawn in each of {count}, so each of them uses a different port.",
            at=random_port,
            also=tuple((start, "started here") for start in launch.started_at[:1]),
            remedy="Draw it once before the tasks are started and export it, or derive it from the job id.",
            severity=None if numbered and not by_name else Severity.WARNING,
            waits_at="rendezvous",
        )
    yield verdict or passed(launch.id)


#: Launches of one line that are several tasks.
_MIN_TASKS = 2


def _port_on_each_node_verdict(job: Job, launch: Launch, random_port: Claim, count: str) -> Verdict:
    inner = _is_drawn_inside(job, launch, random_port)
    inner = evaluated_on_each_node(launch) if inner is None else inner
    ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
    by_hand = not SPREADING_WRAPPERS.intersection(launch.wrappers) and bool(ranks)
    if inner is None and not by_hand:
        return unknown(
            launch.id, f"cannot determine whether {quoted(random_port)} is drawn once or on each node", at=random_port
        )
    if inner is False:
        return passed(launch.id)
    return failed(
        launch.id,
        f"{quoted(random_port)} is drawn on each of the {count} nodes, so each of them uses a different"
        f" {'id' if random_port.quantity == 'rendezvous_id' else 'port'}.",
        at=random_port,
        remedy="Draw it once before the nodes are started, or derive it from the job id.",
        severity=Severity.WARNING if by_hand else None,
        waits_at="rendezvous",
    )


@rule(
    "RDV022",
    "node-rank-not-given",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch for several nodes depends on its node rank",
)
def node_rank_not_given(job: Job) -> Iterator[Verdict]:
    """A torchrun line for several nodes with the static backend gives no node rank.

    What it checks: A line that is started manually (not by srun or mpirun) for more than one node, with `--master_addr`
    and no other backend, gives `--node_rank`, or another line of the job does for the other nodes.

    Why it matters: torchrun then assumes rank 0 on every node. Each node opens its own store and waits for the others.

    Example: `torchrun --nnodes=2 --nproc_per_node=8 --master_addr=10.0.0.1 train.py`, run on both nodes.

    Fix: Pass `--node_rank` to the script (`--node_rank=$1`), or use `--rdzv_backend=c10d
    --rdzv_endpoint=10.0.0.1:29500`, which needs no rank.

    Known limits: The line is correct if it is meant only for node 0 and the lines of the other nodes are elsewhere.
    """
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        static = [c for c in job.setting("rendezvous_backend", launch.scope) if texts(c.value) == ("static",)]
        if launch.launcher not in AGENT_LAUNCHERS or not static or not because or not ranks:
            continue
        if "srun" in launch.wrappers or not certainly_several(nodes) or has_no_address(job, launch):
            continue
        if SUBMISSION in launch.wrappers:
            yield unknown(launch.id, "the program that submits the line may add the node rank", at=launch)
            continue
        if any(on_first_node_only(claim, launch) for claim in job.setting("nodes", launch.scope)):
            # Nothing starts it on a second node, which another rule reports.
            continue
        verdict = undecided(launch.id, (*because, *ranks), launch, quantity="nodes")
        if verdict is None and ranks[0].strength is Strength.DEFAULT and not _another_launch_has_ranks(job, launch):
            verdict = failed(
                launch.id,
                f"{quoted(because[0])} needs ranks 0 to {max(numbers(nodes)) - 1}, each once, but the node rank is "
                f"not given: {launch.launcher} uses 0.",
                at=ranks[0],
                also=((because[0], f"{joined(numbers(nodes))} nodes"),),
                remedy=f"Give --{'machine' if launch.launcher == 'accelerate' else 'node'}_rank, a different one on"
                " each node, or use --rdzv_backend=c10d, which needs none.",
            )
        yield verdict or passed(launch.id)


def _another_launch_has_ranks(job: Job, launch: Launch) -> bool:
    """Return whether another line starts the same program with a node rank above 0."""
    return any(
        claim.strength > Strength.DEFAULT and numbers(claim.value) != (0,)
        for other in job.launches
        if other.id != launch.id and other.program == launch.program
        for claim in job.setting("node_rank", other.scope)
    )
