"""Addresses and variables by which Paddle's processes find each other, and settings in Paddle's FLAGS_ variables."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, is_whole_number
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import LaunchQuestion, each_claim, launches_with, stated_by
from preflight_rules.paddle.fleet import distinct_claims
from preflight_rules.paddle.roles import endpoints
from preflight_rules.rendezvous.variables import variables

_MAX_PORT = 65535
#: Variables that fleet's role maker reads for each role; one name of each entry is enough.
_ROLE_VARIABLES_NEEDED = {
    "PSERVER": (
        ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVERS", "PADDLE_PSERVER_ENDPOINTS"),
        ("PADDLE_TRAINERS_NUM",),
        ("POD_IP",),
        ("PADDLE_PORT",),
    ),
    "TRAINER": (
        ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVERS", "PADDLE_PSERVER_ENDPOINTS"),
        ("PADDLE_TRAINERS_NUM",),
        ("PADDLE_TRAINER_ID",),
    ),
}
#: Least number of variables that a script sets itself; with fewer, the cluster may set the others.
_MIN_SET_BY_SCRIPT = 2


@rule(
    "PDL012",
    "node-address-not-among-nodes",
    severity=Severity.ERROR,
    otherwise="no launch line gives both its own address and the list of nodes",
    each=launches_with("node_address", stated_by("paddle", "hosts")),
)
def node_address_not_among_nodes(question: LaunchQuestion) -> Verdict | None:
    """A node's own address is not in the list of nodes that its launch line gives.

    What it checks: `--node_ip`, `--host` or POD_IP is one of `--ips` (or `--cluster_node_ips`), written the same way.

    Why it matters: The launcher looks for itself in the list to find its rank, and stops with "Can't find your local
    ip": the other nodes wait for it.

    Example: `--cluster_node_ips=10.0.0.1,10.0.0.2 --node_ip=10.0.0.3`.

    Fix: Write the same address in both places.

    Known limits: Without `--host` the launcher resolves the node's own host name, which is known only on the node.
    """
    address_claims, nodes = question.of
    node_hosts = {
        str(host) for claim in nodes for value in claim.alternatives if isinstance(value, tuple) for host in value
    }
    addresses = {text.partition(":")[0] for claim in address_claims for text in texts(claim.value)}
    if addresses and len(node_hosts) > 1 and not addresses & node_hosts:
        return failed(
            question.subject,
            f"{quoted(address_claims[0])} is not one of the nodes of {placed(nodes[0])}: the launcher cannot find "
            "its own node.",
            at=address_claims[0],
            also=((nodes[0], "the nodes"),),
            remedy="Write the node's address exactly as in the list, or add it to the list.",
        )
    return None


@rule(
    "PPS017",
    "fleet-variable-missing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fleet server or trainer is started manually",
)
def fleet_variable_missing(job: Job) -> Iterator[Verdict]:
    """A process that is started manually lacks a variable that fleet's role maker needs.

    What it checks: If a script starts fleet's servers or trainers by setting their variables itself, it sets every
    variable that the role needs: the list of servers and PADDLE_TRAINERS_NUM for both, POD_IP and PADDLE_PORT for a
    server, PADDLE_TRAINER_ID for a trainer.

    Why it matters: The role maker raises ValueError in that process and all others wait for it. Without the list of
    servers it silently trains alone.

    Example: `TRAINING_ROLE=PSERVER PADDLE_PORT=6170 python train.py` without POD_IP.

    Fix: Set the variable, or start the job with fleetrun, which sets all of them.

    Known limits: A variable that the cluster sets is not seen. A script with its own role maker is not judged.
    """
    for launch in job.launches:
        roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
        variable_groups = _ROLE_VARIABLES_NEEDED.get(next(iter(roles)), ()) if len(roles) == 1 else ()
        requests = [c for c in job.about("role_from_environment", launch.scope) if True in c.alternatives]
        if launch.launcher == "python" and requests and not roles and not _is_collective(job, launch.scope):
            set_claims = [claim for claim in job.environment(launch.scope) if claim.quantity in _FLEET_COUNT_VARIABLES]
            role_claims = [claim for claim in job.environment(launch.scope) if claim.quantity in _ROLE_VARIABLES]
            if set_claims and role_claims:
                yield unknown(launch.id, f"{quoted(role_claims[0])} is known only to the caller", at=role_claims[0])
            elif set_claims and not requests[0].condition:
                yield failed(
                    launch.id,
                    f"fleet needs TRAINING_ROLE, but the only variable set for it is {quoted(set_claims[0])}.",
                    at=launch,
                    also=((requests[0], "reads the variables"), (set_claims[0], "set here")),
                    remedy="Set TRAINING_ROLE=TRAINER or PSERVER, or start the job with fleetrun.",
                    severity=Severity.WARNING,
                )
            continue
        if launch.launcher != "python" or not variable_groups or not requests or _is_collective(job, launch.scope):
            continue
        names = {c.quantity.removeprefix("env.") for c in job.environment(launch.scope)}
        set_count = sum(bool(names & set(group)) for group in variable_groups)
        missing_name = next((group[0] for group in variable_groups if not names & set(group)), None)
        if missing_name is None:
            yield passed(launch.id)
        elif set_count < _MIN_SET_BY_SCRIPT or requests[0].condition:
            yield unknown(launch.id, f"the cluster may set {missing_name}", at=requests[0])
        else:
            yield failed(
                launch.id,
                f"fleet needs {missing_name} for a {next(iter(roles))}, but the only variables set for it are "
                f"{', '.join(sorted(names & {name for group in variable_groups for name in group}))}.",
                at=launch,
                also=((requests[0], "reads the variables"),),
                remedy=f"Set {missing_name}, or start the job with fleetrun.",
            )


#: Variables of the role; a script may get the role from its caller.
_ROLE_VARIABLES = ("env.TRAINING_ROLE", "env.PADDLE_TRAINING_ROLE")
#: Variables that people set for a job of fleet.
_FLEET_COUNT_VARIABLES = frozenset(
    ("env.PADDLE_TRAINERS_NUM", "env.PADDLE_PSERVERS_IP_PORT_LIST", "env.PADDLE_TRAINER_ID")
)


def _is_collective(job: Job, scope: Scope) -> bool:
    return any(False in claim.alternatives for claim in job.about("ps_mode", scope))


@rule(
    "PPS018", "endpoint-malformed", severity=Severity.ERROR, otherwise="no variable or script lists servers or trainers"
)
def endpoint_malformed(job: Job) -> Iterator[Verdict]:
    """An entry of a list of servers or trainers is not a `host:port`.

    What it checks: Every entry of PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINER_ENDPOINTS and the transpiler's
    `pservers` has one host and a port from 1 to 65535, and entries are separated by commas.

    Why it matters: The lists are split only at commas and colons. No process can bind or connect to any other entry:
    servers do not find themselves in the list, and trainers retry until the deadline.

    Example: `PADDLE_PSERVERS_IP_PORT_LIST="10.0.0.1:6170;10.0.0.2:6170"`.

    Fix: Write `host:port,host:port`.

    Known limits: Lists of the launchers' options may leave ports out and are not judged.
    """
    for quantity in ("ps_server_endpoints", "ps_worker_endpoints"):
        for subject, _, launch, claim in each_claim(
            job, quantity, where=lambda claim: not claim.spelling.startswith("--")
        ):
            if claim.alternatives:
                yield _form_verdict(subject, claim)
            else:
                yield undecided(subject, (claim,), launch) or passed(subject)


def _form_verdict(subject: str, claim: Claim) -> Verdict:
    faulty = next((entry for entry in endpoints((claim,)) if _entry_fault(entry)), None)
    if faulty is None:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(claim)}: `{faulty}` {_entry_fault(faulty)}; expected host:port.",
        at=claim,
        remedy="Write `host:port,host:port`.",
    )


def _entry_fault(entry: str) -> str:
    host, colon, port = entry.rpartition(":")
    if any(sign in entry for sign in "; \t|"):
        return "contains a separator other than a comma"
    if "$" in entry or "{" in entry or "<" in entry:
        return ""
    if not colon or not host:
        return "has no port" if entry else "is empty"
    if not is_whole_number(port):
        return f"has {port!r} as port"
    return "" if 0 <= int(port) <= _MAX_PORT else f"has port {port}, above {_MAX_PORT}"


@rule(
    "PDL013",
    "global-shuffle-within-one-trainer",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fleet script calls global_shuffle",
)
def global_shuffle_within_one_trainer(job: Job) -> Iterator[Verdict]:
    """`global_shuffle` is called without fleet in a job of several trainers.

    What it checks: A script of fleet's servers and trainers passes `fleet` to `global_shuffle`.

    Why it matters: Without it, the data set assumes a single trainer: each trainer shuffles only its own files, and a
    skew between the trainers' files remains in every epoch.

    Example: `dataset.global_shuffle()` in a script with `fleet.init()`.

    Fix: `dataset.global_shuffle(fleet)`.

    Known limits: A script for a single trainer is correct.
    """
    for subject, scope, claim in distinct_claims(job, "global_shuffle_alone"):
        calls = [c for c in job.about("fleet_calls", scope) if c.span.path == claim.span.path]
        if not calls:
            continue
        if claim.alternatives != (True,):
            yield passed(subject)
        else:
            yield undecided(subject, (claim,)) or failed(
                subject,
                f"{quoted(claim)} shuffles only within each trainer, although {placed(calls[0])} starts several.",
                at=claim,
                also=((calls[0], "several trainers"),),
                remedy="Write `global_shuffle(fleet)`.",
            )


@rule(
    "PDL015",
    "link-local-address",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no Paddle launch names an address",
    each=launches_with(
        also=("master_addr", "hosts", "ps_server_endpoints"),
        where=lambda stated: stated.launch.launcher == "paddle" and any(stated),
    ),
)
def link_local_address(question: LaunchQuestion) -> Verdict | None:
    """Paddle processes on several nodes use a link-local address.

    What it checks: The addresses of the master, nodes and servers of a Paddle launch are not in 169.254.0.0/16 or
    fe80::/10.

    Why it matters: A host without an assigned address assigns itself such an address, for one interface and one link.
    Other nodes cannot reach it, or reach another host; and the launcher, which resolves its own host name, gets
    loopback.

    Example: `--master=169.254.60.61:8090 --nnodes=2`.

    Fix: Use the address of the interface that the nodes share, and export it as POD_IP on each node.

    Known limits: Two directly connected nodes may use such addresses on purpose.
    """
    claim = next((c for c in question.claims if any(_is_link_local(text) for text in _addresses(c))), None)
    if claim is None:
        return None
    address = next(text for text in _addresses(claim) if _is_link_local(text))
    return failed(
        question.subject,
        f"{quoted(claim)}: {address} is a link-local address, which other nodes cannot reach.",
        at=claim,
        remedy="Use an address of the network that the nodes share, and export it as POD_IP on each node.",
    )


def _addresses(claim: Claim) -> tuple[str, ...]:
    addresses: list[str] = []
    for value in claim.alternatives:
        addresses.extend(str(item) for item in value) if isinstance(value, tuple) else addresses.append(str(value))
    return tuple(addresses)


def _is_link_local(address: str) -> bool:
    text = address.strip("[]").lower()
    return text.startswith(("169.254.", "fe80:"))


#: Variables that set a fraction of a memory, and the name of that memory.
_MEMORY_BY_FRACTION = {
    "FLAGS_fraction_of_gpu_memory_to_use": "the GPU's memory",
    "FLAGS_fraction_of_cpu_memory_to_use": "the host's memory",
    "FLAGS_fraction_of_cuda_pinned_memory_to_use": "the pinned memory",
    "FLAGS_memory_fraction_of_eager_deletion": "the variables to be freed",
}
#: The strategy that allocates on demand and ignores the initial fraction.
_AUTO_GROWTH = "auto_growth"
#: The shortest sensible deadline in milliseconds. Paddle's default is 180000; a step with a large table takes seconds.
_SHORT_DEADLINE_MS = 10_000
_COMMUNICATOR = "FLAGS_communicator_"


def _number(claim: Claim) -> float | None:
    values = texts(claim.value)
    if len(values) != 1:
        return None
    try:
        return float(values[0])
    except ValueError:
        return None


def _flags(job: Job) -> Iterator[tuple[str, Launch | None, str, Claim]]:
    return (
        (subject, launch, name, claim) for subject, launch, name, claim in variables(job) if name.startswith("FLAGS_")
    )


@rule("FLG001", "memory-share-out-of-range", severity=Severity.ERROR, otherwise="no memory fraction is set for Paddle")
def memory_share_out_of_range(job: Job) -> Iterator[Verdict]:
    """A FLAGS_ variable for a fraction of memory is not a number from 0 to 1.

    What it checks: FLAGS_fraction_of_gpu_memory_to_use, FLAGS_fraction_of_cpu_memory_to_use,
    FLAGS_fraction_of_cuda_pinned_memory_to_use and FLAGS_memory_fraction_of_eager_deletion are between 0 and 1.

    Why it matters: With more than 1, the first allocation fails on every rank. A value that is not a number is rejected
    when Paddle is imported.

    Example: `export FLAGS_fraction_of_gpu_memory_to_use=92`, meant to be 0.92.

    Fix: Write the value as a fraction.

    Known limits: Whether the share leaves memory for other processes on the GPU is not judged.
    """
    for subject, launch, name, claim in _flags(job):
        if name not in _MEMORY_BY_FRACTION:
            continue
        share = _number(claim)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif share is None or not 0 <= share <= 1:
            expected = f"{share / 100:g}" if share is not None and 1 < share <= 100 else "a number from 0 to 1"
            yield failed(
                subject,
                f"{quoted(claim)} is not a valid fraction of {_MEMORY_BY_FRACTION[name]}: expected a number from 0 to"
                " 1.",
                at=claim,
                remedy=f"Write {expected}.",
            )
        else:
            yield passed(subject)


@rule(
    "FLG002",
    "memory-flags-exclude-each-other",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fraction of GPU memory is set for Paddle",
)
def memory_flags_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """One memory setting of Paddle overrides another.

    What it checks: FLAGS_fraction_of_gpu_memory_to_use is not set together with FLAGS_initial_gpu_memory_in_mb, nor
    with FLAGS_allocator_strategy=auto_growth.

    Why it matters: The initial size overrides the share, and the growing allocator reserves nothing at the start: the
    limit for a shared GPU does not hold, and another process on the GPU runs out of memory.

    Example: `FLAGS_fraction_of_gpu_memory_to_use=0.4` and `FLAGS_initial_gpu_memory_in_mb=8000`.

    Fix: Keep one of them. To limit the growing allocator, set FLAGS_gpu_memory_limit_mb.

    Known limits: A growing allocator that is set only by default (Paddle 2.0 and newer) is not reported.
    """
    by_flag = {(subject, name): (launch, claim) for subject, launch, name, claim in _flags(job)}
    for (subject, name), (launch, share) in by_flag.items():
        if name != "FLAGS_fraction_of_gpu_memory_to_use":
            continue
        initial = by_flag.get((subject, "FLAGS_initial_gpu_memory_in_mb"))
        strategy = by_flag.get((subject, "FLAGS_allocator_strategy"))
        other_claims = [pair[1] for pair in (initial, strategy) if pair is not None]
        if undecided_verdict := undecided(subject, (share, *other_claims), launch):
            yield undecided_verdict
        elif initial is not None and (_number(initial[1]) or 0) > 0:
            yield failed(
                subject,
                f"{quoted(share)} has no effect with {placed(initial[1])}, which overrides it.",
                at=share,
                also=((initial[1], "overrides it"),),
                remedy="Keep FLAGS_fraction_of_gpu_memory_to_use or FLAGS_initial_gpu_memory_in_mb, not both.",
            )
        elif strategy is not None and texts(strategy[1].value) == (_AUTO_GROWTH,) and _number(share) not in (None, 0.0):
            yield failed(
                subject,
                f"{quoted(share)} has no effect with {placed(strategy[1])}, which allocates on demand.",
                at=share,
                also=((strategy[1], "allocates on demand"),),
                remedy="Remove it; FLAGS_gpu_memory_limit_mb limits an allocator that grows on demand.",
                severity=Severity.INFO,
            )
        else:
            yield passed(subject)


@rule(
    "FLG003",
    "rpc-deadline-too-short",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="FLAGS_rpc_deadline is not set",
)
def rpc_deadline_too_short(job: Job) -> Iterator[Verdict]:
    """Requests to parameter servers time out after a few seconds.

    What it checks: FLAGS_rpc_deadline, in milliseconds, is 10000 or more.

    Why it matters: A trainer waits for its servers as long as the slowest trainer takes in a synchronous step, and
    while the servers start. With a short deadline the trainers die one after the other; a value such as 180 is usually
    meant in seconds.

    Example: `export FLAGS_rpc_deadline=300`.

    Fix: Write milliseconds: 300000 for five minutes.

    Known limits: Only the legacy RPC (Fluid 0.15 to 1.8) reads it.
    """
    for subject, launch, name, claim in _flags(job):
        if name != "FLAGS_rpc_deadline":
            continue
        deadline = _number(claim)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif deadline is None:
            yield unknown(subject, f"{quoted(claim)} is not a number", at=claim)
        elif 0 <= deadline < _SHORT_DEADLINE_MS:
            yield failed(
                subject,
                f"{quoted(claim)} makes requests time out after {deadline / 1000:g} s: the unit is milliseconds, and "
                "the default 180000.",
                at=claim,
                remedy=f"Write {int(deadline * 1000)} if {deadline:g} seconds are intended."
                if deadline
                else "Unset FLAGS_rpc_deadline.",
            )
        else:
            yield passed(subject)


@rule(
    "FLG004",
    "communicator-flag-without-communicator",
    severity=Severity.INFO,
    otherwise="no communicator setting is set",
    profile="pedantic",
)
def communicator_flag_without_communicator(job: Job) -> Iterator[Verdict]:
    """A job sets an option of the asynchronous communicator but does not use it.

    What it checks: FLAGS_communicator_ variables are set where parameter servers update asynchronously.

    Why it matters: Synchronous and collective training do not read them, so they have no effect.

    Example: `FLAGS_communicator_send_queue_size=20` in a job with `sync_mode=True`.

    Fix: Remove them, or update asynchronously.

    Known limits: Half-asynchronous training sets most of them itself, regardless of the variables.
    """
    for subject, launch, name, claim in _flags(job):
        if not name.startswith(_COMMUNICATOR):
            continue
        scope = launch.scope if launch is not None else claim.scope
        modes = job.about("ps_update_mode", scope)
        undecided_verdict = undecided(subject, (claim, *modes), launch)
        mode_names = {text for mode in modes for text in texts(mode.value)}
        if undecided_verdict is not None or not mode_names:
            yield undecided_verdict or unknown(subject, f"{quoted(claim)}: the update mode is not given", at=claim)
        elif mode_names == {"sync"}:
            yield failed(
                subject,
                f"{quoted(claim)} is read by asynchronous trainers only, but {placed(modes[0])} updates synchronously.",
                at=claim,
                also=((modes[0], "synchronous"),),
                remedy="Remove it, or update asynchronously.",
            )
        else:
            yield passed(subject)
