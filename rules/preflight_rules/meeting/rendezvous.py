"""Where ranks look for each other, and who they say they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Relation, Strength, Value, strongest
from preflight.job.symbols import Symbol, symbols_in
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight_rules.reading import (
    AGENT_LAUNCHERS,
    SPREADING_WRAPPERS,
    certainly_several,
    host_of,
    is_loopback,
    is_unspecified,
    job_value,
    nodes_spanned,
    numbers,
    placed,
    quoted,
    spoken,
    texts,
    undecided,
)

#: Shells that evaluate a command again on the node it runs on (`srun bash -c '...'`).
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
#: The first node of an allocation, where srun puts rank 0.
_FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'


def address_in_force(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims that say where the ranks of a launch meet.

    What the script itself passes to init_process_group and what the launcher is told both count; the default of
    an option of the script does not, nor does MASTER_ADDR where an agent hands out its own.
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
    """Whether the ranks of a launch meet where its launcher looks when it is told nothing."""
    claims = address_in_force(job, launch)
    return bool(claims) and all(claim.strength is Strength.DEFAULT for claim in claims)


def backends(job: Job, launch: Launch) -> frozenset[str]:
    """The rendezvous backends that a launch may use, as its options say, in small letters."""
    claims = job.setting("rendezvous_backend", launch.scope)
    return frozenset(text.lower() for claim in claims for text in texts(claim.value))


@rule(
    "RDV001",
    "rendezvous-on-loopback",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "pytorch/pytorch#73656",
        "pytorch/pytorch#76367",
        "pytorch/pytorch#107021",
        "pytorch/pytorch#79388",
    ),
)
def rendezvous_on_loopback(job: Job) -> Iterator[Verdict]:
    """Several nodes are told to meet at an address that means "this node" on each of them.

    What it checks:
        For a launch over more than one node, that the rendezvous endpoint or master address in force is not
        loopback (127.x.x.x, localhost, ::1) and not the unspecified address (0.0.0.0, ::). The default that
        torchrun takes when no address is given, 127.0.0.1, counts too. A configuration of a launcher (Accelerate's)
        that no launch names is looked at in the same way, and then it is a warning.

    Why it matters:
        Every node but one then dials itself. Nothing listens there, so it waits for the rendezvous time-out, or
        it opens a store of its own and waits for ranks that will never come.

    Example:
        `torchrun --nnodes=2 --master_addr=localhost ...`.

    Fix:
        Give the name or address of the node of rank 0, in a Slurm job
        `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits:
        Only fires where more than one node is certain, and not for node 0 where the lines of the other nodes name
        another address. A host name that resolves to loopback on its own node is
        a matter for `preflight check`.

    Evidence:
        pytorch/pytorch#73656, #76367, #107021, #79388.
    """
    met = False
    for launch in job.launches:
        nodes, because = nodes_spanned(job, launch)
        addresses = address_in_force(job, launch)
        if not addresses or not because:
            continue
        met = True
        open_end = undecided(launch.id, (*because, *addresses), launch)
        if open_end is not None:
            yield open_end
        elif not certainly_several(nodes) or _others_dial_another(job, launch):
            yield passed(launch.id)
        else:
            yield _meeting_place(launch, addresses, because)
    if not job.launches:
        for verdict in _of_configuration(job):
            met = True
            yield verdict
    if not met:
        yield not_applicable(job.name, "no launch says both where its nodes meet and how many they are")


def _of_configuration(job: Job) -> Iterator[Verdict]:
    """A configuration of a launcher that no launch of the job names: what its command line adds is not known."""
    nodes, addresses = job.requiring("nodes"), job.setting("master_addr")
    if not nodes or not addresses:
        return
    subject = addresses[0].span.path
    open_end = undecided(subject, (*nodes, *addresses))
    hosts = [host_of(text) for claim in addresses for text in texts(claim.value)]
    if open_end is not None:
        yield open_end
    elif not certainly_several(job_value(nodes)) or not all(is_loopback(h) or is_unspecified(h) for h in hosts):
        yield passed(subject)
    else:
        yield failed(
            subject,
            f"{quoted(addresses[0])} means the node itself on each of them, but {placed(nodes[0])} makes"
            f" {spoken(numbers(job_value(nodes)))} nodes meet there.",
            at=addresses[0],
            also=((nodes[0], f"{spoken(numbers(job_value(nodes)))} nodes"),),
            remedy="Give the name or address of the node of rank 0.",
            severity=Severity.WARNING,
        )


def _others_dial_another(job: Job, launch: Launch) -> bool:
    """Whether this line is node 0's own and those of other nodes name another address: its store listens on all."""
    if numbers(job_value(job.setting("node_rank", launch.scope))) != (0,):
        return False
    others = [other for other in job.launches if other.program == launch.program and _node_rank_above_0(job, other)]
    hosts = [texts(job_value(address_in_force(job, other))) for other in others]
    return bool(hosts) and not any(is_loopback(host_of(text)) for found in hosts for text in found)


def _node_rank_above_0(job: Job, launch: Launch) -> bool:
    ranks = numbers(job_value(job.setting("node_rank", launch.scope)))
    return bool(ranks) and min(ranks) > 0


def _meeting_place(launch: Launch, addresses: tuple[Claim, ...], because: tuple[Claim, ...]) -> Verdict:
    hosts = [host_of(text) for claim in addresses for text in texts(claim.value)]
    if not hosts or not all(is_loopback(host) or is_unspecified(host) for host in hosts):
        return passed(launch.id)
    claim, count = addresses[0], spoken(numbers(job_value(because)))
    default = claim.strength is Strength.DEFAULT
    option = re.search(r"\(without (--\S+)\)", claim.spelling)
    missing = option[1] if option else "address"
    said = _with_value(claim, hosts[0])
    if default:
        said = f"{launch.launcher} is given no {missing} and falls back to {hosts[0]}"
    if is_unspecified(hosts[0]):
        meaning = "is no address that can be dialled"
    else:
        meaning = "means the node itself on each of them"
    return failed(
        launch.id,
        f"{said}{', which' if default else ''} {meaning}, but {placed(because[0])} makes"
        f" {count} nodes meet there: all but one will wait until rendezvous times out.",
        at=launch if default else claim,
        also=((because[0], f"{count} nodes"),),
        remedy="Give the name or address of the node of rank 0"
        + (f" with {missing}" if default and option else "")
        + f"; in a Slurm job: {_FIRST_HOST}.",
        waits_at="rendezvous",
    )


def _with_value(claim: Claim, host: str) -> str:
    """The spelling, with the host it comes to where that cannot be read in it."""
    if re.search(rf"{re.escape(host)}\s*,", claim.spelling):
        return f"`{host}`, the first of {quoted(claim)},"
    # A value read from a file stands in no spelling of the line.
    return quoted(claim) if host in claim.spelling or "$" in claim.spelling else f"{quoted(claim)} ({host})"


#: The beginning of a double-quoted assignment in a script.
_ASSIGNED = lazy_pattern(r"\s*(?:export\s+)?[A-Za-z_]\w*=\"[^\"]*$")


#: `bash -c 'cd work; `: single quotes leave everything in them to that shell.
_SINGLE_QUOTED = lazy_pattern(r"\b(?:ba|da|z)?sh\s+(?:-\w+\s+)*-\w*c\s+'[^']*$")


def evaluated_on_each_node(launch: Launch) -> bool | None:
    """Whether `$(hostname)` in this launch's line is evaluated once per node; None when that cannot be told.

    `srun torchrun --master_addr=$(hostname)` is expanded by the batch script, once; `srun bash -c '...'` leaves
    it to the shell of each node.
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
    # On one line with its srun and no quotation mark between the two, no other shell can be in between.
    wrapper = max((before.rfind(name) for name in SPREADING_WRAPPERS), default=-1)
    if wrapper >= 0 and not set("'\"") & set(before):
        return False
    return None


@rule(
    "RDV002",
    "rendezvous-address-differs-per-node",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("hiyouga/LlamaFactory#7326", "pytorch/pytorch#79388"),
)
def rendezvous_address_differs_per_node(job: Job) -> Iterator[Verdict]:
    """Every node names itself as the place where all nodes meet.

    What it checks:
        Where a shell runs on each node (`srun bash -c '...'`), that the address given there is not the name or
        address of the node it runs on (`$(hostname)`, `$HOSTNAME`, `$(hostname -I)`).

    Why it matters:
        Each node opens a rendezvous of its own and waits for the others until it times out.

    Example:
        `srun bash -c 'torchrun --nnodes=2 --rdzv_endpoint=$(hostname):29500 ...'`.

    Fix:
        Find the address once, in the batch script before srun, and export it:
        `export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)`.

    Known limits:
        The same words directly behind srun, without a shell in between, are expanded once by the batch script
        and are right.

    Evidence:
        hiyouga/LlamaFactory#7326, pytorch/pytorch#79388.
    """
    met = False
    for launch in job.launches:
        nodes, because = _nodes_started(job, launch)
        addresses = [c for c in address_in_force(job, launch) if _names_itself(c)]
        if not addresses or not because:
            continue
        met = True
        inner = evaluated_on_each_node(launch)
        if inner is None and SPREADING_WRAPPERS.intersection(launch.wrappers) and _is_batch_job(job):
            # What a batch script itself expands is the first host of the allocation, not "this host".
            inner = True
        if inner is None or not numbers(nodes):
            yield unknown(launch.id, f"{quoted(addresses[0])} may be another name on each node", at=addresses[0])
        elif inner and certainly_several(nodes):
            yield failed(
                launch.id,
                f"{quoted(addresses[0])} is evaluated on each of the {spoken(numbers(nodes))} nodes and names another"
                " one each time, so every node waits at a rendezvous of its own.",
                at=addresses[0],
                also=((because[0], f"{spoken(numbers(nodes))} nodes"),),
                remedy="Find the address once in the batch script, before srun, and export it"
                + (f": export MASTER_ADDR={_FIRST_HOST}." if _is_batch_job(job) else "."),
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch meets at the name of the node it runs on")


def _nodes_started(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """On how many nodes the line is really started, where something says so; else how many it expects."""
    sets = job.setting("nodes", launch.scope)
    return (job_value(sets), sets) if numbers(job_value(sets)) else nodes_spanned(job, launch)


def _is_batch_job(job: Job) -> bool:
    return any(claim.source == "slurm" and not claim.scope.launch for claim in job.claims)


def _names_itself(claim: Claim) -> bool:
    return bool(symbols_in(claim.value) & {Symbol.THIS_HOST, Symbol.THIS_ADDRESS})
