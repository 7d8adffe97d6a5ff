"""The distribution of parameters over servers, and the memory that they need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import host_of
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import SubjectQuestion, claims_about
from preflight_rules.kubernetes.workloads import Role, Workload, workloads
from preflight_rules.paddle.fleet import distinct_claims
from preflight_rules.paddle.fluid import claims_of
from preflight_rules.paddle.roles_played import endpoints
from reference_trainer.ps.partition import FLOAT_BYTES, MIN_BLOCK, OPTIMIZER_SLOTS, bytes_held, overloaded

#: More servers than this are a mistake that other rules report.
_MAX_SERVERS = 10_000
#: From this size on, sending a table at every step takes longer than the step.
_LARGE_TABLE_BYTES = 64 * 2**20


def _sizes(claims: Sequence[Claim]) -> list[tuple[int, ...]]:
    return [
        tuple(int(str(n)) for n in value)
        for claim in claims
        for value in claim.alternatives
        if isinstance(value, tuple)
    ]


def _shared_parameters(job: Job, scope: Scope, claims: Sequence[Claim]) -> list[Claim]:
    """The claims without tables that share a named parameter with an earlier one."""
    seen: set[str] = set()
    kept: list[Claim] = []
    for claim in claims:
        named = [c for c in job.about("embedding_parameter", scope) if any(r.span == claim.span for r in c.because)]
        name = "".join(texts(named[0].value)) if named else ""
        if name not in seen or not name:
            kept.append(claim)
        seen.add(name)
    return kept


def _megabytes(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


@rule(
    "PPS014",
    "servers-hold-unequal-shares",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no transpiled script with known servers creates parameters",
)
def servers_hold_unequal_shares(job: Job) -> Iterator[Verdict]:
    """Some servers hold no parameter, or one holds far more than the others.

    What it checks: If a script gives the sizes of all its parameters, the shares of the servers are computed: every
    server holds some, and the fullest holds at most twice the mean.

    Why it matters: A server without parameters does nothing, and in Paddle v2 waits forever. The fullest one sends and
    receives most of every step, so its network card sets the speed of the job.

    Example: `config.slice_var_up = False`, an embedding of 1000000 x 64 and two small layers, on 8 servers.

    Fix: Leave slice_var_up on, use a smaller min_block_size, or start fewer servers.

    Known limits: Layers whose sizes are not followed (convolutions, recurrent layers) leave it unknown. HashName
    depends on the names of variables and is not computed.
    """
    for subject, scope, transpiler in distinct_claims(job, "transpiler"):
        if "pserver" not in texts(transpiler.value):
            continue
        path = transpiler.span.path
        parameters = [
            claim
            for name in ("embedding_shape", "parameter_shape")
            for claim in job.about(name, scope)
            if claim.span.path == path
        ]
        servers = job.value_claims("ps_server_endpoints", scope) or job.value_claims("ps_servers", scope)
        if not parameters or not servers:
            continue
        parameters.sort(key=lambda claim: (claim.span.line, claim.span.column))
        yield _shares(job, subject, scope, transpiler, _shared_parameters(job, scope, parameters), servers)


def _shares(
    job: Job,
    subject: str,
    scope: Scope,
    transpiler: Claim,
    parameters: Sequence[Claim],
    servers: tuple[Claim, ...],
) -> Verdict:
    settings = [
        c
        for name in ("slice_var_up", "min_block_size", "split_method")
        for c in claims_of(job, name, scope, transpiler)
    ]
    if undecided_verdict := undecided(subject, (*servers, *settings, *parameters)):
        return undecided_verdict
    values = {claim.quantity: claim.alternatives[0] for claim in settings}
    if values.get("split_method") == "HashName":
        return unknown(subject, "HashName gives blocks to servers by the hash of their names", at=transpiler)
    listed = endpoints(servers)
    count = len(listed) or min(numbers(servers[0].value), default=0)
    least = values.get("min_block_size", MIN_BLOCK)
    sliced = values.get("slice_var_up", True) is not False
    if not 1 <= count <= _MAX_SERVERS or not isinstance(least, int):
        return unknown(subject, "the number of servers is not known", at=servers[0])
    held = bytes_held(_sizes(parameters), (), count, min_elements=least if sliced else None)
    total, fullest = sum(held), max(held)
    empty = [index for index, share in enumerate(held) if not share]
    because = settings[0] if settings else transpiler
    biggest = max(parameters, key=lambda claim: math.prod(_sizes([claim])[0]))
    if empty:
        return failed(
            subject,
            f"{quoted(servers[0])}: of {count} servers {len(empty)} hold nothing, because the {len(parameters)}"
            f" parameters ({_megabytes(total)}) form only {count - len(empty)} blocks.",
            at=servers[0],
            also=((because, "cut here"), (biggest, "the largest parameter")),
            remedy=f"Start {count - len(empty)} servers, or use a smaller min_block_size.",
        )
    if overloaded(held):
        return failed(
            subject,
            f"{quoted(biggest)} goes to one server, which holds {_megabytes(fullest)}, while the mean of {count} is"
            f" {_megabytes(total / count)}.",
            at=biggest,
            also=((because, "cut here"), (servers[0], "the servers")),
            remedy="Leave slice_var_up on, so that large parameters are split."
            if not sliced
            else "Use a smaller min_block_size or fewer servers.",
        )
    return passed(subject)


@rule(
    "PPS015",
    "tables-exceed-server-memory",
    severity=Severity.ERROR,
    otherwise="no job with tables names its servers and their memory",
)
def tables_exceed_server_memory(job: Job) -> Iterator[Verdict]:
    """The embedding tables do not fit into the memory of the servers' hosts.

    What it checks: Rows x width x 4 bytes x (1 + what the optimizer keeps for each value), divided over the servers, is
    less than the memory that the job requests on each node, times the servers there.

    Why it matters: A server allocates its share when the first parameters come, and runs out of memory: "bad alloc"
    after the whole job has started.

    Example: `size=[1000000000, 64]` with Adam over 4 servers, and `#SBATCH --mem=64G`.

    Fix: Start more servers on more hosts, request more memory, or use a table that only holds rows it has seen.

    Known limits: Tables that grow (`sparse_embedding`) start empty and are not counted. The trainers' own memory is not
    subtracted.
    """
    seen: set[tuple[str, ...]] = set()
    for subject, scope, first in distinct_claims(job, "embedding_shape"):
        memory = job.setting("memory_per_node_mib", scope)
        servers = [
            claim
            for quantity in ("ps_server_endpoints", "ps_servers")
            for claim in job.value_claims(quantity, scope)
            if not isinstance(claim.value, Unresolved)
        ] or list(job.value_claims("ps_server_endpoints", scope))
        key = (first.span.path, subject)
        if not memory or not servers or key in seen:
            continue
        seen.add(key)
        grown = [c for c in job.about("embedding_sparse", scope) if "sparse_embedding" in c.spelling]
        tables = [
            claim
            for claim in job.about("embedding_shape", scope)
            if not any(reason.span == claim.span for other in grown for reason in other.because)
        ]
        pair = (memory[0], servers[0])
        yield _memory_verdict(job, subject, scope, _shared_parameters(job, scope, tables), pair)
        growing = [reason for claim in grown for reason in claim.because]
        if growing:
            yield _memory_verdict(job, subject, scope, growing, pair, severity=Severity.WARNING)


def _memory_verdict(
    job: Job,
    subject: str,
    scope: Scope,
    tables: Sequence[Claim],
    per_node: tuple[Claim, Claim],
    *,
    severity: Severity | None = None,
) -> Verdict:
    memory, servers = per_node
    undecided_verdict = undecided(subject, (memory, servers, *tables))
    if undecided_verdict is not None or not tables:
        return undecided_verdict or passed(subject)
    # Where the operator gives the addresses, each server has a pod of its own.
    count = max(numbers(servers.value), default=0) if servers.quantity == "ps_servers" else 0
    listed = endpoints((servers,)) if not count else [f"pod{index}" for index in range(min(count, _MAX_SERVERS))]
    optimizers = {text for claim in job.about("optimizer", scope) for text in texts(claim.value)} - {""}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    total = sum(math.prod(shape) for shape in _sizes(tables)) * FLOAT_BYTES * (1 + slots)
    hosts = [host_of(entry) for entry in listed]
    most = max((hosts.count(host) for host in hosts), default=0)
    mib = max(numbers(memory.value), default=0)
    if not listed or not mib:
        return unknown(subject, f"{quoted(memory)}: the amount is not given", at=memory)
    share = total / len(listed) * most
    if share <= mib * 2**20:
        return passed(subject)
    verb = "may grow to" if severity is not None else "take"
    biggest = max(tables, key=lambda claim: math.prod(_sizes([claim])[0]))
    kept = f", with {slots} further values for each ({', '.join(sorted(optimizers))})" if slots else ""
    return failed(
        subject,
        f"{quoted(biggest)}: the tables {verb} {_megabytes(total)}{kept}, so {_megabytes(share)} on a host of"
        f" {most} of the {len(listed)} servers, but {placed(memory)} grants {_megabytes(mib * 2**20)}.",
        at=biggest,
        also=((memory, "memory of a node"), (servers, "the servers")),
        remedy="Spread the tables over more servers, or ask for more memory.",
        severity=severity,
    )


@rule(
    "PPS016",
    "large-table-sent-whole",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script with parameter servers creates an embedding",
)
def large_table_sent_whole(job: Job) -> Iterator[Verdict]:
    """A large embedding in a parameter-server job is not sparse.

    What it checks: An embedding of 64 MiB or more, in a script that serves parameters, has `is_sparse=True`.

    Why it matters: Without it the gradient is as large as the table, and every step sends it to the servers and the
    whole table back, instead of the rows of the batch.

    Example: `fluid.layers.embedding(x, size=[10000000, 16])` in a script with a transpiler.

    Fix: Write `is_sparse=True`.

    Known limits: Only tables with a literal size are judged.
    """
    for subject, scope, table in distinct_claims(job, "embedding_shape"):
        modes = [c for c in job.about("ps_mode", scope) if True in c.alternatives]
        if not modes:
            continue
        sparse = [c for c in job.about("embedding_sparse", scope) if any(r.span == table.span for r in c.because)]
        if undecided_verdict := undecided(subject, (table, *sparse, *modes)):
            yield undecided_verdict
            continue
        size = math.prod(_sizes([table])[0]) * FLOAT_BYTES
        if size < _LARGE_TABLE_BYTES or any(True in claim.alternatives for claim in sparse):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(table)} is a table of {_megabytes(size)} without is_sparse=True: every step sends all of"
                f" it to the servers of {placed(modes[0])} and back.",
                at=table,
                also=((modes[0], "parameter servers"),),
                remedy="Give the embedding `is_sparse=True`.",
            )


@rule(
    "FLU008",
    "blocks-dealt-by-hash",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiler's split_method is set",
    each=claims_about("split_method", also=("env.PYTHONHASHSEED",)),
)
def blocks_dealt_by_hash(question: SubjectQuestion) -> Verdict | None:
    """Parameters are assigned to servers by Python's hash, which differs between processes.

    What it checks: The transpiler's split_method is RoundRobin, or PYTHONHASHSEED is set to one number for all
    processes.

    Why it matters: HashName uses `hash(name)`, which Python 3 salts differently in each process, so trainers and
    servers disagree about the assignment: trainers request parameters from servers that do not have them. A hash also
    fills servers unevenly when there are few blocks.

    Example: `config.split_method = HashName`.

    Fix: Use RoundRobin, or export PYTHONHASHSEED=0 for every process.

    Known limits: Programs for Python 2 work with HashName.
    """
    (method,), seeds = question.of
    if texts(method.value) != ("HashName",) or (seeds and "random" not in texts(seeds[0].value)):
        return None
    return failed(
        question.subject,
        f"{quoted(method)} assigns blocks by Python's hash, which differs in every process of Python 3.",
        at=method,
        remedy="Use RoundRobin, or export PYTHONHASHSEED=0 for all processes.",
    )


#: Below this share of the trainers' cores, servers are the bottleneck of every step. A rule of thumb: a server unpacks,
#: applies and packs what all trainers send, which costs a fraction of computing it.
_LEAST_SHARE = 1 / 50


@rule(
    "PPS031",
    "server-pods-short-of-cores",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no manifest gives the cores of parameter servers",
)
def server_pods_short_of_cores(job: Job) -> Iterator[Verdict]:
    """The parameter servers of a manifest have few CPU cores for the trainers that they serve.

    What it checks: Each pod of a `ps` role may use at least one core, and all servers together a fiftieth of the
    trainers' cores.

    Why it matters: A server applies the gradients of all trainers and packs the answers. With half a core it is
    throttled, every trainer waits for it at each step, and requests run into their deadline.

    Example: `ps: replicas: 2` with `cpu: 500m`, and 16 workers with `cpu: 16`.

    Fix: Give servers several cores each, or start more servers.

    Known limits: The needed number depends on the model; the limits of this rule are for clear cases only.
    """
    for workload in workloads(job):
        servers = [role for role in workload.roles if role.name.lower() in ("ps", "server", "parameterserver")]
        for role in servers:
            limits = role.in_force("pod_cpus") or role.in_force("pod_cpu_requests")
            if not limits or not workload.trainers:
                continue
            undecided_verdict = undecided(workload.id, (limits[0], role.count))
            yield undecided_verdict or _cores(workload, role, limits[0])


def _cores(workload: Workload, role: Role, limit: Claim) -> Verdict:
    cores, servers = _largest(limit), _largest(role.count)
    used = 0.0
    for trainer in workload.trainers:
        own = trainer.in_force("pod_cpus") or trainer.in_force("pod_cpu_requests")
        used += _largest(trainer.count) * (_largest(own[0]) if own else 0)
    total = cores * servers
    if cores >= 1 and total >= used * _LEAST_SHARE:
        return passed(workload.id)
    compared = f" and the trainers {used:g}" if used else ""
    return failed(
        workload.id,
        f"{quoted(limit)} gives the {servers:g} parameter servers {total:g} cores together{compared}: the servers are"
        " the bottleneck of each step.",
        at=limit,
        remedy="Give servers several cores each, or start more servers.",
    )


def _largest(claim: Claim) -> float:
    """The largest number that a claim allows; 0 without one."""
    return max((float(item) for item in claim.alternatives if isinstance(item, (int, float))), default=0.0)
