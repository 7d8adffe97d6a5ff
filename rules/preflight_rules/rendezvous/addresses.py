"""Rendezvous addresses, ports and node ranks: invalid host names, and values that must or must not differ between
nodes.
"""

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


def address_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims that give the rendezvous address of a launch.

    Arguments of init_process_group and of the launcher count. The default of a script option does not, and neither does
    MASTER_ADDR if an agent sets it.
    """
    claims = [
        claim
        for claim in job.about("master_addr", launch.scope)
        if claim.relation is Relation.SETS and not (claim.source == "python" and claim.strength is Strength.DEFAULT)
    ]
    if launch.launcher in AGENT_LAUNCHERS or launch.launcher == "deepspeed":
        claims = [claim for claim in claims if claim.source != "environment"]
    return strongest(claims)


def uses_default_address(job: Job, launch: Launch) -> bool:
    """Return whether a launch has no address, so that the launcher uses its default."""
    claims = address_claims(job, launch)
    return bool(claims) and all(claim.strength is Strength.DEFAULT for claim in claims)


def backends(job: Job, launch: Launch) -> frozenset[str]:
    """Return the rendezvous backends that a launch may use according to its options, in lower case."""
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

    What it checks: For a launch over more than one node, the effective rendezvous endpoint or master address is neither
    loopback (127.x.x.x, localhost, ::1) nor the unspecified address (0.0.0.0, ::). This includes 127.0.0.1, torchrun's
    default if no address is given. A launcher's configuration (Accelerate's) that no launch names is checked in the
    same way, with a warning.

    Why it matters: Every node but one then connects to itself. Nothing listens there, so the node waits for the
    rendezvous timeout, or opens its own store and waits for ranks that will never come.

    Example: `torchrun --nnodes=2 --master_addr=localhost ...`.

    Fix: Give the name or address of the node of rank 0, in a Slurm job `$(scontrol show hostnames "$SLURM_JOB_NODELIST"
    | head -n1)`.

    Known limits: Reported only if there is certainly more than one node. Not reported for node 0 if the lines of the
    other nodes name another address, or if one script starts several nodes next to each other on its own machine.
    `preflight check` finds a host name that resolves to loopback on its own node.
    """
    for launch in job.launches:
        nodes, node_claims = nodes_spanned(job, launch)
        addresses = address_claims(job, launch)
        if not addresses or not node_claims:
            continue
        verdict = undecided(launch.id, (*node_claims, *addresses), launch)
        if verdict is None and not (
            not certainly_several(nodes)
            or _only_first_node_is_local(job, launch)
            or _all_nodes_are_this_machine(job, launch)
            or _each_node_is_a_group(job, launch)
        ):
            verdict = _rendezvous_verdict(launch, addresses, node_claims)
        yield verdict or passed(launch.id)
    if not job.launches:
        yield from _judge_configurations(job)


def _judge_configurations(job: Job) -> Iterator[Verdict]:
    """Yield the verdict on a launcher's configuration that no launch names, so that no option overrides it."""
    nodes, addresses = job.requirement_claims("nodes"), job.setting("master_addr")
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
            f"{quoted(addresses[0])} means the local node on every node, but {placed(nodes[0])} makes "
            f"{joined(numbers(job_value(nodes)))} nodes rendezvous there.",
            at=addresses[0],
            also=((nodes[0], f"{joined(numbers(job_value(nodes)))} nodes"),),
            remedy="Give the name or address of the node of rank 0.",
            severity=Severity.WARNING,
        )
    yield verdict or passed(subject)


def _only_first_node_is_local(job: Job, launch: Launch) -> bool:
    """Return whether only node 0 uses a local address, which works: its store listens on all interfaces."""
    if numbers(job_value(job.setting("node_rank", launch.scope))) != (0,):
        return False
    others = [other for other in job.launches if other.program == launch.program and _node_rank_above_0(job, other)]
    hosts = [texts(job_value(address_claims(job, other))) for other in others]
    return bool(hosts) and not any(is_loopback(host_of(text)) for host_texts in hosts for text in host_texts)


def _each_node_is_a_group(job: Job, launch: Launch) -> bool:
    """Return whether the program creates a group from one node's GPUs, which CFG002 reports."""
    sizes = job.about("setting.torch_group.world_size", launch.scope)
    return bool(sizes) and all(Symbol.GPU_COUNT in symbols_in(claim.value) for claim in sizes)


def _all_nodes_are_this_machine(job: Job, launch: Launch) -> bool:
    """Return whether one script starts this node and another node next to each other on its own machine."""
    if not _runs_locally_in_background(launch):
        return False
    own_ranks = numbers(job_value(job.setting("node_rank", launch.scope)))
    return bool(own_ranks) and any(
        _runs_locally_in_background(other)
        and other.program == launch.program
        and starting_file(other) == starting_file(launch)
        and numbers(job_value(job.setting("node_rank", other.scope))) not in ((), own_ranks)
        for other in job.launches
    )


def _runs_locally_in_background(launch: Launch) -> bool:
    return launch.concurrent and not (SPREADING_WRAPPERS | {"ssh"}).intersection(launch.wrappers)


def _node_rank_above_0(job: Job, launch: Launch) -> bool:
    ranks = numbers(job_value(job.setting("node_rank", launch.scope)))
    return bool(ranks) and min(ranks) > 0


def _rendezvous_verdict(launch: Launch, addresses: tuple[Claim, ...], node_claims: tuple[Claim, ...]) -> Verdict:
    hosts = [host_of(text) for claim in addresses for text in texts(claim.value)]
    if not hosts or not all(is_loopback(host) or is_unspecified(host) for host in hosts):
        return passed(launch.id)
    claim, count = addresses[0], joined(numbers(job_value(node_claims)))
    is_default = claim.strength is Strength.DEFAULT
    option = re.search(r"\(without (--\S+)\)", claim.spelling)
    missing = option[1] if option else "address"
    statement = _text_with_host(claim, hosts[0])
    if is_default:
        statement = f"{launch.launcher} has no {missing} and falls back to {hosts[0]}"
    meaning = "is not an address to connect to" if is_unspecified(hosts[0]) else "means the local node on every node"
    return failed(
        launch.id,
        f"{statement}{', which' if is_default else ''} {meaning}, but {placed(node_claims[0])} makes {count} nodes "
        "rendezvous there: all but one will wait until the rendezvous times out.",
        at=launch if is_default else claim,
        also=((node_claims[0], f"{count} nodes"),),
        remedy="Give the name or address of the node of rank 0"
        + (f" with {missing}" if is_default and option else "")
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
_OPEN_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*=\"[^\"]*$")


#: `bash -c 'cd work; `: single quotes leave expansion to that shell.
_SINGLE_QUOTED = re.compile(r"\b(?:ba|da|z)?sh\s+(?:-\w+\s+)*-\w*c\s+'[^']*$")


def is_evaluated_on_each_node(launch: Launch) -> bool | None:
    """Return whether `$(hostname)` in this launch's line is evaluated once per node; None if unknown.

    The batch script expands `srun torchrun --master_addr=$(hostname)` once; with `srun bash -c '...'` each node's shell
    expands it.
    """
    spreader_indices = [i for i, name in enumerate(launch.wrappers) if name in SPREADING_WRAPPERS]
    if not spreader_indices:
        return None
    if any(name in _SHELLS for name in launch.wrappers[spreader_indices[0] + 1 :]):
        return True
    text_before = launch.span.snippet[: launch.span.column - 1]
    if _SINGLE_QUOTED.search(text_before):
        return True
    # `LAUNCHER="torchrun ... $X"` is expanded where it is assigned, unless the dollar sign is escaped.
    if _OPEN_ASSIGNMENT.match(text_before):
        return False
    # On one line with srun and without a quotation mark between them, no other shell expands it.
    wrapper = max((text_before.rfind(name) for name in SPREADING_WRAPPERS), default=-1)
    if wrapper >= 0 and not set("'\"") & set(text_before):
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

    What it checks: If a shell runs on each node (`srun bash -c '...'`), the address is not the name or address of the
    node that the shell runs on (`$(hostname)`, `$HOSTNAME`, `$(hostname -I)`).

    Why it matters: Each node opens its own rendezvous and waits for the others until it times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --rdzv_endpoint=$(hostname):29500 ...'`.

    Fix: Determine the address once, in the batch script before srun, and export it: `export MASTER_ADDR=$(scontrol show
    hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: The same words directly under srun, without a shell in between, are expanded once by the batch script
    and are correct.
    """
    for launch in job.launches:
        nodes, node_claims = _nodes_started(job, launch)
        own_symbols = {Symbol.THIS_HOST, Symbol.THIS_ADDRESS}
        addresses = [c for c in address_claims(job, launch) if symbols_in(c.value) & own_symbols]
        if not addresses or not node_claims:
            continue
        is_on_node = is_evaluated_on_each_node(launch)
        if is_on_node is None and SPREADING_WRAPPERS.intersection(launch.wrappers) and _is_batch_job(job):
            # A batch script expands it to the first host of the allocation.
            is_on_node = True
        if is_on_node is None or not numbers(nodes):
            yield unknown(launch.id, f"{quoted(addresses[0])} may differ between nodes", at=addresses[0])
        elif is_on_node and certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is evaluated on each of the {joined(numbers(nodes))} nodes and gives"
                " a different host each time, so every node waits at its own rendezvous.",
                at=addresses[0],
                also=((node_claims[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Determine the address once in the batch script, before srun, and export it"
                + (f": export MASTER_ADDR={_FIRST_HOST}." if _is_batch_job(job) else "."),
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)


def _nodes_started(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """Return the number of nodes on which the line is started if known, otherwise the number that it expects.

    The claims that give the number are returned with it.
    """
    sets = job.setting("nodes", launch.scope)
    return (job_value(sets), sets) if numbers(job_value(sets)) else nodes_spanned(job, launch)


def _is_batch_job(job: Job) -> bool:
    return any(claim.source == "slurm" and not claim.scope.launch for claim in job.claims)


#: Commands that start their command on every node.
_NODE_STARTERS = frozenset({"srun", "pdsh", "clush"})


@rule(
    "RDV003",
    "node-rank-same-on-every-node",
    severity=Severity.ERROR,
    otherwise="no launcher that needs a node rank is started on several nodes",
)
def node_rank_same_on_every_node(job: Job) -> Iterator[Verdict]:
    """Every node gets the same node rank: a fixed number, or a variable that the batch script expands.

    What it checks: If srun, pdsh or clush starts a launcher on several nodes with a static rendezvous, its node rank
    differs between nodes: it is neither a fixed number, nor SLURM_NODEID or SLURM_PROCID expanded before srun runs. In
    equal pods of a Kubernetes role, the node rank is not a fixed number.

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
        nodes, node_claims = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        starters = _NODE_STARTERS.intersection(launch.wrappers)
        if launch.launcher not in AGENT_LAUNCHERS or not starters or not ranks or not node_claims:
            continue
        if uses_default_address(job, launch) and ranks[0].strength is Strength.DEFAULT:
            # The missing rendezvous address of such a line is reported first.
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        if why_unresolved((*node_claims, *backend), launch) is not None:
            claim, why = why_unresolved((*node_claims, *backend), launch) or (ranks[0], "")
            yield unknown(launch.id, f"{quoted(claim)} is unknown: {why}", at=claim)
        elif not certainly_several(nodes) or backends(job, launch) - {"static"}:
            yield passed(launch.id)
        else:
            yield _node_rank_verdict(job, launch, ranks[0], node_claims[0], joined(numbers(nodes)))


def _role_verdict(job: Job, role: Role, launch: Launch) -> Verdict | None:
    """Return the verdict on a fixed node rank in a launch line of several equal pods; None for other lines."""
    ranks = [c for c in job.setting("node_rank", launch.scope) if c.strength > Strength.DEFAULT]
    pods, required = numbers(role.count.value), job.requirement_claims("nodes", launch.scope)
    if not ranks or not numbers(ranks[0].value) or not pods or min(pods) < 2 or backends(job, launch) - {"static"}:
        return None
    if not certainly_several(job_value(required)) or why_unresolved((*ranks, *required), launch) is not None:
        return None
    return failed(
        launch.id,
        f"{quoted(ranks[0])} is the node rank of each of the {joined(pods)} pods of {role.name or 'this object'}, "
        f"but {quoted(required[0])} needs each rank exactly once, so the pods wait.",
        at=ranks[0],
        also=((role.count, "equal pods"),),
        remedy="Derive the rank from the pod's index (JOB_COMPLETION_INDEX, the ordinal in its name), or use"
        " --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _starter_name(launch: Launch) -> str:
    return next(name for name in launch.wrappers if name in _NODE_STARTERS)


def _local_rank_verdict(launch: Launch, rank: Claim, required: Claim) -> Verdict:
    """Return the finding on SLURM_LOCALID as node rank, which is 0 on every node, regardless of where it is
    expanded.
    """
    return failed(
        launch.id,
        f"{quoted(rank)} counts the tasks within a node, so it is 0 on every node that srun starts, but "
        f"{quoted(required)} needs ranks 0 to {int(max(numbers(required.value))) - 1}, each once.",
        at=rank,
        also=((required, "needs each rank exactly once"),),
        remedy="Use $SLURM_NODEID, expanded by a shell on the node, or use --rdzv_backend=c10d, which needs no rank.",
        waits_at="rendezvous",
    )


def _missing_rank_verdict(launch: Launch, rank: Claim, required: Claim) -> Verdict:
    return failed(
        launch.id,
        f"{launch.launcher} has no node rank and uses 0 on every node that {_starter_name(launch)} starts, but"
        f" {quoted(required)} needs ranks 0 to {int(max(numbers(required.value))) - 1}, each once: all nodes will"
        " wait.",
        at=rank,
        also=((required, "needs each rank exactly once"),),
        remedy="Use --rdzv_backend=c10d --rdzv_endpoint=<first node>:<port>, which needs no rank, or give each node its"
        " rank: srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'.",
        waits_at="rendezvous",
    )


def _node_rank_verdict(job: Job, launch: Launch, rank: Claim, required: Claim, count: str) -> Verdict:
    grants = job.setting("nodes", launch.scope)
    if not grants or not certainly_several(job_value(grants)):
        return unknown(launch.id, f"cannot determine on how many nodes {_starter_name(launch)} starts it", at=launch)
    if job.setting("single_node_step", launch.scope):
        # `srun -n1 -w "$node" torchrun --node_rank=$i`: one step for each node, each with its own rank.
        return passed(launch.id)
    rank_numbers = numbers(rank.value)
    if rank.strength is Strength.DEFAULT:
        return _missing_rank_verdict(launch, rank, required)
    is_variable = bool(symbols_in(rank.value) & {Symbol.NODE_RANK, Symbol.PROCESS_RANK})
    if Symbol.LOCAL_RANK in symbols_in(rank.value) and certainly_one(
        job_value(job.setting("tasks_per_node", launch.scope))
    ):
        return _local_rank_verdict(launch, rank, required)
    before = rank.span.snippet[: rank.span.column - 1]
    is_quoted_elsewhere = rank.span.line != launch.span.line and bool(set("'\"") & set(before))
    is_expanded_early = is_expanded_in_script(rank.value) and "srun" in launch.wrappers
    if is_variable and not is_expanded_early and ("\\$" in rank.span.snippet or is_quoted_elsewhere):
        return unknown(launch.id, f"cannot determine where {quoted(rank)} is expanded", at=rank)
    is_on_node = is_evaluated_on_each_node(launch)
    if is_variable and is_on_node and not is_expanded_early:
        return passed(launch.id)
    if is_variable and is_on_node is None and not is_expanded_early:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} is expanded on the node", at=rank)
    if len(rank_numbers) != 1 and not is_variable:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    if "srun" not in launch.wrappers and not rank_numbers:
        return unknown(launch.id, f"cannot determine whether {quoted(rank)} differs between nodes", at=rank)
    cause = "is expanded by the batch script, where it is 0," if is_variable else f"is {rank_numbers[0]}"
    return failed(
        launch.id,
        f"{quoted(rank)} {cause} on every node that {_starter_name(launch)} starts, but {quoted(required)} needs ranks"
        f" 0 to {int(max(numbers(required.value))) - 1}, each once.",
        at=rank,
        also=((required, f"{count} nodes"), (launch, "started on each node")),
        remedy="Let a shell on the node expand it (`srun bash -c 'torchrun --node_rank=$SLURM_NODEID ...'`),"
        " or use --rdzv_backend=c10d, which needs no node rank.",
    )


# Rendezvous addresses and ports: no host names, not the nodes' own names, or different between nodes at run time.


#: Patterns of values that are not a host name or address, and the fault in words.
_ADDRESS_FAULTS = (
    (re.compile(r"[^@\s]+@[^@\s]+"), "contains a user name, as for ssh"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+"), "is a URL"),
    (re.compile(r"(?:\S+[,;]\s*)+\S+"), "is a list of hosts"),
    (re.compile(r"\S+(?:\s+\S+)+"), "contains several words"),
)


@rule(
    "RDV029",
    "rendezvous-address-is-no-host",
    severity=Severity.ERROR,
    otherwise="no launch gives its rendezvous address",
    each=launches_with(lambda job, scope: address_claims(job, job.launch(scope.launch))),
)
def rendezvous_address_is_no_host(question: LaunchQuestion) -> Verdict | None:
    """The rendezvous address is not a valid host name.

    What it checks: The rendezvous address of the nodes (`--master_addr`, `main_process_ip`, an effective MASTER_ADDR)
    has no user name (`user@host`), scheme (`http://`) or second host.

    Why it matters: No resolver knows such a name. Every node waits for the rendezvous, or stops because the name is
    unknown.

    Example: `main_process_ip: ubuntu@10.0.0.4`.

    Fix: Give only the host name or address of the node of rank 0.

    Known limits: Only literal addresses are judged.
    """
    addresses, launch = question.claims, question.of.launch
    faults = [(claim, fault) for claim in addresses if (fault := _address_fault(claim))]
    if len(faults) < len(addresses):
        return None
    claim, fault = faults[0]
    return failed(
        question.subject,
        f"The rendezvous address {quoted(claim)} {fault}: no node can resolve it.",
        at=claim,
        also=((launch, "started here"),),
        remedy="Give only the host name or address of the node of rank 0.",
        waits_at="rendezvous",
    )


def _address_fault(claim: Claim) -> str:
    """Return the fault of an address's first alternative if every alternative has a fault; otherwise an empty
    string.
    """
    faults = [
        next((fault for pattern, fault in _ADDRESS_FAULTS if pattern.fullmatch(text)), "")
        for text in texts(claim.value)
    ]
    return faults[0] if faults and all(faults) else ""


@rule(
    "RDV008",
    "rendezvous-host-is-no-nodes-own-name",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no torchrun launch names a host for c10d",
)
def rendezvous_host_is_no_nodes_own_name(job: Job) -> Iterator[Verdict]:
    """The c10d endpoint uses a name that is not the node's own host name.

    What it checks: With `--rdzv_backend=c10d` on several nodes, the endpoint's host is the scheduler's name of a node,
    not that name with a prefix or suffix (`${HEAD}i`, `ib-$HEAD`), and is in the job's own list of hosts.

    Why it matters: Every torchrun compares the endpoint with its own host name, and the one that finds itself opens the
    store. With an alias (of the InfiniBand interface, for example) no node does: all nodes try to connect, and the
    rendezvous never forms.

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
        nodes, node_claims = nodes_spanned(job, launch)
        hosts = [c for c in job.setting("master_addr", launch.scope) if c.source == "torchrun"]
        if not hosts or not node_claims or texts(job_value(backend)) != ("c10d",):
            continue
        verdict = undecided(launch.id, (*node_claims, *backend), launch)
        if verdict is None and not (not certainly_several(nodes) or _sets_is_host(job, launch)):
            verdict = _host_verdict(job, launch, hosts[0])
        yield verdict or passed(launch.id)


def _sets_is_host(job: Job, launch: Launch) -> bool:
    claims = job.setting("rendezvous_conf", launch.scope)
    return any(not texts(claim.value) or "is_host" in texts(claim.value)[0] for claim in claims)


def _host_verdict(job: Job, launch: Launch, claim: Claim) -> Verdict:
    remedy = "Give the name that `hostname` prints there, the node's address, or --rdzv_conf=is_host=1 on that node."
    symbols = symbols_in(claim.value)
    prefix, suffix = affixes_of(claim.value)
    if Symbol.FIRST_ALLOCATED_HOST in symbols and (prefix or (suffix and not suffix.startswith("."))):
        return failed(
            launch.id,
            f"{quoted(claim)} is the first host's name with `{prefix or suffix}` "
            f"{'prepended' if prefix else 'appended'}: torchrun compares the endpoint with the node's own host name "
            "to decide which node opens the store, and no node has this name.",
            at=claim,
            remedy=remedy,
        )
    if Symbol.FIRST_ALLOCATED_HOST in symbols or Symbol.FIRST_ALLOCATED_ADDRESS in symbols:
        return passed(launch.id)
    names = texts(claim.value)
    if not names:
        return unknown(launch.id, f"cannot determine which host {quoted(claim)} names", at=claim)
    host_claims = [c for c in job.setting("hosts", launch.scope) if c.alternatives]
    known_hosts = {
        str(host) for c in host_claims for value in c.alternatives if isinstance(value, tuple) for host in value
    }
    if known_hosts and not any(_is_in_host_list(host_of(name), known_hosts) for name in names):
        return failed(
            launch.id,
            f"{quoted(claim)} names {host_of(names[0])}, which is not one of the hosts of {placed(host_claims[0])}: no"
            " torchrun matches it, so no node opens the store.",
            at=claim,
            also=((host_claims[0], "the job's hosts"),),
            remedy=remedy,
        )
    return passed(launch.id)


def _is_in_host_list(host: str, known_hosts: set[str]) -> bool:
    """Return whether a host is in the list by name or first label; an address may be any listed host."""
    if is_loopback(host) or host.replace(".", "").isdecimal() or ":" in host:
        return True
    label = host.partition(".")[0].lower()
    return label in {name.partition(".")[0].lower() for name in known_hosts}


@rule(
    "RDV009",
    "node-names-may-not-resolve",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no launch names a c10d endpoint",
)
def node_names_may_not_resolve(job: Job) -> Iterator[Verdict]:
    """The nodes rendezvous at an IP address, but the ranks connect to a host name that may not resolve.

    What it checks: If several nodes use c10d with an endpoint that is an IP address, `--local-addr` (or PET_LOCAL_ADDR)
    sets the address that each node advertises.

    Why it matters: Without it, torchrun passes the own host name of rank 0's node to the ranks. If names do not resolve
    between nodes, which an IP address as endpoint suggests, the rendezvous forms but the process group then hangs.

    Example: `PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=10.2.0.7:36123 PET_NNODES=2` without PET_LOCAL_ADDR.

    Fix: `--local-addr=$(hostname -I | cut -d" " -f1)` on each node, or names that all nodes resolve.

    Known limits: `preflight check` checks whether the names resolve; if they do, the launch is correct.
    """
    for launch in job.launches:
        backend, hosts = job.setting("rendezvous_backend", launch.scope), job.setting("master_addr", launch.scope)
        if launch.launcher != "torchrun" or texts(job_value(backend)) != ("c10d",) or not hosts:
            continue
        nodes, node_claims = nodes_spanned(job, launch)
        verdict = undecided(launch.id, (*node_claims, *hosts), launch)
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
            is_multi_node = certainly_several(job_value(variables["NNODES"]))
            is_c10d = texts(job_value(variables["RDZV_BACKEND"])) == ("c10d",)
            endpoint = variables["RDZV_ENDPOINT"][0]
            if is_multi_node and is_c10d and _is_address(endpoint) and not job.setting("env.PET_LOCAL_ADDR"):
                yield _address_verdict(job.name, endpoint)
            else:
                yield passed(job.name)


def _is_address(claim: Claim) -> bool:
    hosts = [host_of(text) for text in texts(claim.value)]
    return bool(hosts) and all(
        host.count(".") == 3 and host.replace(".", "").isdecimal() and not is_loopback(host) and host != "0.0.0.0"
        for host in hosts
    )


def _address_verdict(subject: str, claim: Claim) -> Verdict:
    return failed(
        subject,
        f"{quoted(claim)} gives an address, but the ranks connect to the host name of the node of rank 0: if that "
        "name does not resolve on other nodes, they hang after the rendezvous.",
        at=claim,
        remedy="Give each node's own address with --local-addr (PET_LOCAL_ADDR), or make sure that names resolve.",
    )


_PORT_QUANTITIES = ("master_port", "rendezvous_endpoint", "rendezvous_id")


@rule(
    "RDV020",
    "rendezvous-on-submission-host",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch uses the submission host as its rendezvous address",
)
def rendezvous_on_submission_host(job: Job) -> Iterator[Verdict]:
    """The rendezvous address is the host that the job was submitted from.

    What it checks: The rendezvous or master address is not `$SLURM_SUBMIT_HOST`, `$PBS_O_HOST` or `$LSB_SUB_HOST`.

    Why it matters: That is the login node. No rank runs there, so nothing listens, and all ranks wait until the
    rendezvous times out.

    Example: `srun torchrun --nnodes=4 --rdzv_endpoint=$SLURM_SUBMIT_HOST:29500 train.py`.

    Fix: Use the first host of the allocation, in Slurm `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits: If jobs are submitted from inside an allocation, the submitting host may be a node of the job, so this
    is a warning.
    """
    for launch in job.launches:
        nodes, node_claims = nodes_spanned(job, launch)
        addresses = [c for c in address_claims(job, launch) if Symbol.SUBMISSION_HOST in symbols_in(c.value)]
        if not addresses:
            continue
        undecided_verdict = undecided(launch.id, node_claims, launch, quantity="nodes")
        if undecided_verdict is not None or not node_claims:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is {Symbol.SUBMISSION_HOST.value}, usually a login node where no rank runs:"
                " nothing will listen there.",
                at=addresses[0],
                also=((node_claims[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Give the first host of the allocation; in a Slurm job:"
                ' $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1).',
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)


@rule(
    "RDV021", "rendezvous-port-random-on-each-node", severity=Severity.ERROR, otherwise="no launch uses a random port"
)
def rendezvous_port_random_on_each_node(job: Job) -> Iterator[Verdict]:
    """Every node, or every task, chooses its own random port for the common rendezvous.

    What it checks: If a shell runs on each node or in each task, its master port, endpoint and id of the rendezvous do
    not come from `$RANDOM`, `uuidgen`, `mktemp`, `$$`, the time or a search for a free port, and the id not from the
    name or index of the node.

    Why it matters: The nodes connect to different ports, or wait for nodes with their own id. Only the master's own
    ranks find each other; the rest wait until the rendezvous times out.

    Example: `srun bash -c 'torchrun --nnodes=2 --master_port=$((20000 + RANDOM % 1000)) ...'`.

    Fix: Choose the port once, in the batch script before srun, and export it; or derive it from the job id, which is
    the same everywhere: `$((20000 + SLURM_JOB_ID % 10000))`.

    Known limits: A script that is started manually on each node (no line of the job starts it, or it takes its node
    rank from the caller) gives a warning, because a wrapper around it may set the port. So do tasks without a rank, and
    a function whose name suggests a search for a free port.
    """
    for launch in job.launches:
        nodes, node_claims = nodes_spanned(job, launch)
        random_port = _random_port(job, launch)
        if random_port is None:
            continue
        if launch.launcher not in AGENT_LAUNCHERS:
            yield from _task_verdicts(job, launch, random_port)
            continue
        undecided_verdict = undecided(launch.id, node_claims, launch, quantity="nodes")
        if undecided_verdict is not None or not node_claims:
            yield undecided_verdict or unknown(launch.id, "the number of nodes is not given", at=launch)
        elif not certainly_several(nodes):
            yield passed(launch.id)
        else:
            yield _port_on_each_node_verdict(job, launch, random_port, joined(numbers(nodes)))


def _random_port(job: Job, launch: Launch) -> Claim | None:
    """Return the claim that takes the rendezvous port from a random number, the time or a search for a free port; None
    if there is no such claim.
    """
    for quantity in _PORT_QUANTITIES:
        for claim in job.setting(quantity, launch.scope):
            if _is_random(claim, quantity=quantity):
                return claim
    return None


_DRAWS = (
    r"\bS?RANDOM\b|\b(?:EPOCH)?SECONDS\b|\$\$|\bBASHPID\b|\bshuf\b|\buuid(?:gen)?\b|\bmktemp\b|\bdate\b|\bsocket\b"
    r"|\bopenssl rand\b|random"
)
#: Expressions that draw a number or look for a free port, and names of such functions.
_RANDOM_EXPRESSIONS = re.compile(rf"{_DRAWS}|(?:free|find|get|open|unused)\w*port")
#: Programs whose output, as the reason of an unresolved value names them, is drawn for certain.
_DRAWING_PROGRAMS = re.compile(_DRAWS)
#: Expressions for the name or index of the node: harmless in a port, but each node then has a rendezvous id of its own.
_OWN_NAMES = re.compile(r"\bhostname\b|\buname -n\b|\bHOST(?:NAME)?\b|\bSLURM_(?:NODEID|PROCID)\b|\bSLURMD_NODENAME\b")
_OWN_SYMBOLS = frozenset((Symbol.THIS_HOST, Symbol.THIS_ADDRESS, Symbol.NODE_RANK, Symbol.PROCESS_RANK))
_FUNCTION_OUTPUT = re.compile(r"the output of `\w+`")


def _is_random(claim: Claim, *, quantity: str) -> bool:
    """Return whether a value is a random number, a process id, the time, or the output of a search for a free port."""
    symbols = symbols_in(claim.value)
    if symbols & {Symbol.RANDOM_NUMBER, Symbol.TIME, Symbol.PROCESS_ID}:
        return True
    if quantity == "rendezvous_id" and symbols & _OWN_SYMBOLS and not is_expanded_in_script(claim.value):
        return True
    if not isinstance(claim.value, Unresolved) or not claim.value.why.startswith("the output of"):
        return False
    return bool(_RANDOM_EXPRESSIONS.search(claim.spelling) or _DRAWING_PROGRAMS.search(claim.value.why))


def _is_drawn_in(claim: Claim, *, quantity: str) -> bool:
    """Return whether the text of a claim is itself the expression that differs on each node."""
    is_own = quantity == "rendezvous_id" and _OWN_NAMES.search(claim.spelling) is not None
    return is_own or _RANDOM_EXPRESSIONS.search(claim.spelling) is not None


#: Commands, as written, that start a command on each node or in each task.
_SPREADING_COMMANDS = re.compile(rf"\b(?:{'|'.join(sorted(SPREADING_WRAPPERS | {'ssh'}))})\b")


#: `bash -c "torchrun`: the outer shell expands what no backslash escapes, once.
_DOUBLE_QUOTED = re.compile(r"\b(?:ba|da|z)?sh\s+(?:-\w+\s+)*-\w*c\s+\"")
_ESCAPED = re.compile(r"^[^$]*\\\$")


def _draw_span(job: Job, launch: Launch, claim: Claim) -> Span | None:
    """Return where a random value is drawn, by a claim or by a variable in it; None if unknown."""
    if _is_drawn_in(claim, quantity=claim.quantity):
        return claim.span
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", claim.spelling)
    setters = [setter for name in names for setter in job.about(f"env.{name}", launch.scope)]
    spans = (
        setter.span
        for setter in setters
        if _is_random(setter, quantity=claim.quantity) and _is_drawn_in(setter, quantity=claim.quantity)
    )
    # A script sets a variable itself if it does not get it from the environment.
    is_own = bool(names) and not setters and bool(launch.started_at) and launch.started_at[0].path != claim.span.path
    return next(spans, claim.origin or (claim.span if is_own else None))


def _is_drawn_per_node(job: Job, launch: Launch, claim: Claim) -> bool | None:
    """Return whether the script or shell that draws a value runs on each node or in each task; None if unknown."""
    span, is_drawn = _draw_span(job, launch, claim), None
    for index, call in enumerate(launch.started_at):
        if _SPREADING_COMMANDS.search(call.snippet) is None or span is None:
            continue
        is_drawn = False
        start_position, end_position = (call.line, call.column), (call.end_line, call.end_column)
        is_within = span.path == call.path and start_position <= (span.line, span.column) <= end_position
        inner_paths = {launch.span.path, *(later.path for later in launch.started_at[index + 1 :])} - {call.path}
        if is_within and _DOUBLE_QUOTED.search(call.snippet) and not _ESCAPED.search(span.snippet[span.column - 1 :]):
            continue
        if is_within or span.path in inner_paths:
            return True
    return is_drawn


def _task_verdicts(job: Job, launch: Launch, random_port: Claim) -> Iterator[Verdict]:
    """Yield the verdict on tasks that are ranks: `srun bash wrapper.sh`, or `ssh $host bash rank.sh` in a loop."""
    ranks, rank_claims = ranks_started(job, launch.scope)
    start_count = sum(other.span == launch.span for other in job.launches)
    if not SPREADING_WRAPPERS.intersection((launch.launcher, *launch.wrappers)) and start_count < _MIN_TASKS:
        return
    if not _is_drawn_per_node(job, launch, random_port):
        yield passed(launch.id)
        return
    if random_port.condition:
        yield unknown(launch.id, f"whether each task reaches {quoted(random_port)} is unknown", at=random_port)
        return
    verdict = undecided(launch.id, rank_claims, launch, quantity="ranks") if start_count < _MIN_TASKS else None
    if verdict is None and (certainly_several(ranks) or start_count >= _MIN_TASKS):
        has_rank = any(job.about(f"env.{name}", launch.scope) for name in ("RANK", "WORLD_SIZE"))
        is_guess = isinstance(random_port.value, Unresolved) and _FUNCTION_OUTPUT.match(random_port.value.why)
        count = f"the {joined(numbers(ranks))} tasks" if certainly_several(ranks) else "the tasks"
        verdict = failed(
            launch.id,
            f"{quoted(random_port)} is drawn in each of {count}, so each uses a different port.",
            at=random_port,
            also=tuple((start, "started here") for start in launch.started_at[:1]),
            remedy="Draw it once before the tasks are started and export it, or derive it from the job id.",
            severity=None if has_rank and not is_guess else Severity.WARNING,
            waits_at="rendezvous",
        )
    yield verdict or passed(launch.id)


#: Least number of launches of one line that count as several tasks.
_MIN_TASKS = 2


def _port_on_each_node_verdict(job: Job, launch: Launch, random_port: Claim, count: str) -> Verdict:
    is_per_node = _is_drawn_per_node(job, launch, random_port)
    is_per_node = is_evaluated_on_each_node(launch) if is_per_node is None else is_per_node
    ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
    is_manual = not SPREADING_WRAPPERS.intersection(launch.wrappers) and (
        bool(ranks) or _is_started_by_no_line(job, launch, random_port)
    )
    if is_per_node is None and not is_manual:
        return unknown(
            launch.id, f"cannot determine whether {quoted(random_port)} is drawn once or on each node", at=random_port
        )
    if is_per_node is False:
        return passed(launch.id)
    return failed(
        launch.id,
        f"{quoted(random_port)} is drawn on each of the {count} nodes, so each uses a different "
        f"{'id' if random_port.quantity == 'rendezvous_id' else 'port'}.",
        at=random_port,
        remedy="Draw it once before the nodes are started, or derive it from the job id.",
        severity=Severity.WARNING if is_manual else None,
        waits_at="rendezvous",
    )


def _is_started_by_no_line(job: Job, launch: Launch, random_port: Claim) -> bool:
    """Return whether a script draws the value and starts the agent of its node, and nothing else starts the script."""
    span = _draw_span(job, launch, random_port)
    only_first = any(on_first_node_only(claim, launch) for claim in job.setting("nodes", launch.scope))
    return (
        SUBMISSION not in launch.wrappers
        and not launch.started_at
        and not only_first
        and (span is None or span.path == launch.span.path)
    )


@rule(
    "RDV022",
    "node-rank-not-given",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch for several nodes depends on its node rank",
)
def node_rank_not_given(job: Job) -> Iterator[Verdict]:
    """A torchrun line for several nodes with the static backend does not set a node rank.

    What it checks: A line that is started manually (not by srun or mpirun) for more than one node, with `--master_addr`
    and no other backend, gives `--node_rank`, or another line of the job does for the other nodes.

    Why it matters: torchrun then assumes rank 0 on every node. Each node opens its own store and waits for the others.

    Example: `torchrun --nnodes=2 --nproc_per_node=8 --master_addr=10.0.0.1 train.py`, run on both nodes.

    Fix: Pass `--node_rank` to the script (`--node_rank=$1`), or use `--rdzv_backend=c10d
    --rdzv_endpoint=10.0.0.1:29500`, which needs no rank.

    Known limits: The line is correct if it is meant only for node 0 and the lines of the other nodes are elsewhere.
    """
    for launch in job.launches:
        nodes, node_claims = nodes_spanned(job, launch)
        ranks = job.setting("node_rank", launch.scope)
        static_claims = [c for c in job.setting("rendezvous_backend", launch.scope) if texts(c.value) == ("static",)]
        if launch.launcher not in AGENT_LAUNCHERS or not static_claims or not node_claims or not ranks:
            continue
        if "srun" in launch.wrappers or not certainly_several(nodes) or uses_default_address(job, launch):
            continue
        if SUBMISSION in launch.wrappers:
            yield unknown(launch.id, "the program that runs this command line may add the node rank", at=launch)
            continue
        if any(on_first_node_only(claim, launch) for claim in job.setting("nodes", launch.scope)):
            # Nothing starts the line on a second node, which SLU003 reports.
            continue
        verdict = undecided(launch.id, (*node_claims, *ranks), launch, quantity="nodes")
        if verdict is None and ranks[0].strength is Strength.DEFAULT and not _another_launch_has_ranks(job, launch):
            verdict = failed(
                launch.id,
                f"{quoted(node_claims[0])} needs ranks 0 to {max(numbers(nodes)) - 1}, each once, but the node rank is "
                f"not given: {launch.launcher} uses 0.",
                at=ranks[0],
                also=((node_claims[0], f"{joined(numbers(nodes))} nodes"),),
                remedy="Give each node a different "
                f"--{'machine' if launch.launcher == 'accelerate' else 'node'}_rank, or use "
                "--rdzv_backend=c10d, which needs none.",
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
