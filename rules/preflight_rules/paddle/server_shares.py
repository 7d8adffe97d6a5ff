"""How parameters are divided over the servers: who holds how much, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.paddle.fleet import once
from preflight_rules.paddle.fluid import of
from preflight_rules.paddle.paddle_ps import endpoints
from preflight_rules.reading import deciding, host_of, numbers, placed, quoted, texts, undecided
from reference_trainer.ps.sharding import FLOAT_BYTES, LEAST_BLOCK, OPTIMIZER_SLOTS, bytes_held, overloaded

#: More servers than this are a mistake that other rules name.
_MOST_SERVERS = 10_000
#: A table of this size that goes over the network at every step is slower than training.
_LARGE_TABLE_BYTES = 64 * 2**20


def _sizes(claims: Sequence[Claim]) -> list[tuple[int, ...]]:
    return [
        tuple(int(str(n)) for n in value)
        for claim in claims
        for value in claim.alternatives
        if isinstance(value, tuple)
    ]


def _each_once(job: Job, scope: Scope, claims: Sequence[Claim]) -> list[Claim]:
    """The claims without tables that share the parameter of one before them, by its name."""
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
    evidence=("PaddlePaddle/Paddle#2224", "PaddlePaddle/Paddle#8638"),
)
def servers_hold_unequal_shares(job: Job) -> Iterator[Verdict]:
    """Some servers hold no parameter, or one holds far more than the others.

    What it checks:
        Where a script spells out the sizes of all its parameters, the shares that the transpiler gives to the servers
        are computed: no server holds nothing, and the fullest holds at most twice the mean.

    Why it matters:
        A server without parameters does nothing, and in Paddle v2 waits for ever. The fullest one sends and receives
        most of every step, so its network card sets the speed of the job.

    Example:
        `config.slice_var_up = False`, an embedding of 1000000 x 64 and two small layers, on 8 servers.

    Fix:
        Leave slice_var_up on, take a smaller min_block_size, or start fewer servers.

    Known limits:
        Layers whose sizes are not followed (convolutions, recurrent layers) leave it unknown. HashName depends on
        the names of variables and is not computed.

    Evidence:
        PaddlePaddle/Paddle#2224 (servers without parameters), PaddlePaddle/Paddle#8638 (block sizes).
    """
    met = False
    for subject, scope, transpiler in once(job, "transpiler"):
        if "pserver" not in texts(transpiler.value):
            continue
        path = transpiler.span.path
        parameters = [
            claim
            for name in ("embedding_shape", "parameter_shape")
            for claim in job.about(name, scope)
            if claim.span.path == path
        ]
        servers = deciding(job, "ps_server_endpoints", scope) or deciding(job, "ps_servers", scope)
        if not parameters or not servers:
            continue
        met = True
        parameters.sort(key=lambda claim: (claim.span.line, claim.span.column))
        yield _shares(job, subject, scope, transpiler, _each_once(job, scope, parameters), servers)
    if not met:
        yield not_applicable(job.name, "no transpiled script with known servers makes parameters")


def _shares(
    job: Job,
    subject: str,
    scope: Scope,
    transpiler: Claim,
    parameters: Sequence[Claim],
    servers: tuple[Claim, ...],
) -> Verdict:
    settings = [
        c for name in ("slice_var_up", "min_block_size", "split_method") for c in of(job, name, scope, transpiler)
    ]
    open_end = undecided(subject, (*servers, *settings, *parameters))
    if open_end is not None:
        return open_end
    said = {claim.quantity: claim.alternatives[0] for claim in settings}
    if said.get("split_method") == "HashName":
        return unknown(subject, "HashName gives blocks to servers by the hash of their names", at=transpiler)
    listed = endpoints(servers)
    count = len(listed) or min(numbers(servers[0].value), default=0)
    least = said.get("min_block_size", LEAST_BLOCK)
    sliced = said.get("slice_var_up", True) is not False
    if not 1 <= count <= _MOST_SERVERS or not isinstance(least, int):
        return unknown(subject, "the number of servers is not known", at=servers[0])
    held = bytes_held(_sizes(parameters), (), count, least=least if sliced else None)
    total, fullest = sum(held), max(held)
    empty = [index for index, share in enumerate(held) if not share]
    because = settings[0] if settings else transpiler
    biggest = max(parameters, key=lambda claim: math.prod(_sizes([claim])[0]))
    if empty:
        return failed(
            subject,
            f"{quoted(servers[0])}: of {count} servers {len(empty)} hold nothing, for the {len(parameters)} parameters"
            f" ({_megabytes(total)}) come to {count - len(empty)} blocks.",
            at=servers[0],
            also=((because, "cut here"), (biggest, "the largest parameter")),
            remedy=f"Start {count - len(empty)} servers, or take a smaller min_block_size.",
        )
    if overloaded(held):
        return failed(
            subject,
            f"{quoted(biggest)} goes to one server: that one holds {_megabytes(fullest)}, while the mean of {count} is"
            f" {_megabytes(total / count)}.",
            at=biggest,
            also=((because, "cut here"), (servers[0], "the servers")),
            remedy="Leave slice_var_up on, so that large parameters are cut."
            if not sliced
            else "Take a smaller min_block_size, or fewer servers.",
        )
    return passed(subject)


@rule(
    "PPS015",
    "tables-exceed-server-memory",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#10398",),
)
def tables_exceed_server_memory(job: Job) -> Iterator[Verdict]:
    """The embedding tables do not fit into the memory of the servers' hosts.

    What it checks:
        Rows x width x 4 bytes x (1 + what the optimizer keeps for each value), divided over the servers, is less than
        the memory that the job asks for on each node, times the servers there.

    Why it matters:
        A server allocates its share when the first parameters come, and dies of it: "bad alloc" after the whole job
        has been placed and started.

    Example:
        `size=[1000000000, 64]` with Adam over 4 servers, and `#SBATCH --mem=64G`.

    Fix:
        Start more servers on more hosts, ask for more memory, or use a table that only holds rows it has seen.

    Known limits:
        Tables that grow (`sparse_embedding`) start empty and are not counted. The trainers' own memory is not
        subtracted.

    Evidence:
        PaddlePaddle/Paddle#10398.
    """
    met = False
    seen: set[tuple[str, ...]] = set()
    for subject, scope, first in once(job, "embedding_shape"):
        memory = job.setting("memory_per_node_mib", scope)
        servers = deciding(job, "ps_server_endpoints", scope)
        key = (first.span.path, subject)
        if not memory or not servers or key in seen:
            continue
        seen.add(key)
        met = True
        grown = [c for c in job.about("embedding_sparse", scope) if "sparse_embedding" in c.spelling]
        tables = [
            claim
            for claim in job.about("embedding_shape", scope)
            if not any(reason.span == claim.span for other in grown for reason in other.because)
        ]
        yield _fits(job, subject, scope, _each_once(job, scope, tables), (memory[0], servers[0]))
    if not met:
        yield not_applicable(job.name, "no job with tables names its servers and their memory")


def _fits(job: Job, subject: str, scope: Scope, tables: Sequence[Claim], there: tuple[Claim, Claim]) -> Verdict:
    memory, servers = there
    open_end = undecided(subject, (memory, servers, *tables))
    if open_end is not None or not tables:
        return open_end or passed(subject)
    listed = endpoints((servers,))
    optimizers = {text for claim in job.about("optimizer", scope) for text in texts(claim.value)} - {""}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    total = sum(math.prod(shape) for shape in _sizes(tables)) * FLOAT_BYTES * (1 + slots)
    hosts = [host_of(entry) for entry in listed]
    most = max((hosts.count(host) for host in hosts), default=0)
    mib = max(numbers(memory.value), default=0)
    if not listed or not mib:
        return unknown(subject, f"{quoted(memory)}: nothing says how much there is", at=memory)
    share = total / len(listed) * most
    if share <= mib * 2**20:
        return passed(subject)
    biggest = max(tables, key=lambda claim: math.prod(_sizes([claim])[0]))
    kept = f", with {slots} further values for each ({', '.join(sorted(optimizers))})" if slots else ""
    return failed(
        subject,
        f"{quoted(biggest)}: the tables take {_megabytes(total)}{kept}, so {_megabytes(share)} on a host of"
        f" {most} of the {len(listed)} servers, but {placed(memory)} grants {_megabytes(mib * 2**20)}.",
        at=biggest,
        also=((memory, "memory of a node"), (servers, "the servers")),
        remedy="Spread the tables over more servers, or ask for more memory.",
    )


@rule(
    "PPS016",
    "large-table-sent-whole",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#25174",),
)
def large_table_sent_whole(job: Job) -> Iterator[Verdict]:
    """A large embedding in a parameter-server job is not sparse.

    What it checks:
        An embedding of 64 MiB or more, in a script that serves parameters, has `is_sparse=True`.

    Why it matters:
        Without it the gradient is as large as the table, and every step sends it to the servers and the whole table
        back, instead of the rows of the batch.

    Example:
        `fluid.layers.embedding(x, size=[10000000, 16])` in a script with a transpiler.

    Fix:
        Write `is_sparse=True`.

    Known limits:
        Only tables whose size is spelt out are judged.

    Evidence:
        PaddlePaddle/Paddle#25174.
    """
    met = False
    for subject, scope, table in once(job, "embedding_shape"):
        modes = [c for c in job.about("ps_mode", scope) if True in c.alternatives]
        if not modes:
            continue
        met = True
        sparse = [c for c in job.about("embedding_sparse", scope) if any(r.span == table.span for r in c.because)]
        open_end = undecided(subject, (table, *sparse, *modes))
        if open_end is not None:
            yield open_end
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
    if not met:
        yield not_applicable(job.name, "no script that serves parameters makes an embedding")


@rule(
    "FLU008",
    "blocks-dealt-by-hash",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    evidence=(
        "https://github.com/PaddlePaddle/Paddle/blob/v1.8.5/python/paddle/fluid/transpiler/ps_dispatcher.py",
        "PaddlePaddle/Paddle#8638",
    ),
)
def blocks_dealt_by_hash(job: Job) -> Iterator[Verdict]:
    """Parameters are given to servers by Python's own hash, which differs from process to process.

    What it checks:
        The transpiler's split_method is RoundRobin, or PYTHONHASHSEED is set to one number for all processes.

    Why it matters:
        HashName takes `hash(name)`. Python 3 salts it anew in each process, so trainers and servers disagree about who
        holds what: parameters are asked of servers that do not have them. Apart from that a hash fills servers
        unevenly when there are few blocks.

    Example:
        `config.split_method = HashName`.

    Fix:
        Use RoundRobin, or export PYTHONHASHSEED=0 for every process.

    Known limits:
        Programs for Python 2 are right with HashName.

    Evidence:
        fluid/transpiler/ps_dispatcher.py of 1.8.5 (HashName).
    """
    met = False
    for subject, scope, method in once(job, "split_method"):
        met = True
        seeds = job.setting("env.PYTHONHASHSEED", scope)
        open_end = undecided(subject, (method, *seeds))
        if open_end is not None:
            yield open_end
        elif texts(method.value) != ("HashName",) or (seeds and "random" not in texts(seeds[0].value)):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(method)} deals blocks by Python's hash, which is another one in every process of Python 3.",
                at=method,
                remedy="Use RoundRobin, or export PYTHONHASHSEED=0 for all processes.",
            )
    if not met:
        yield not_applicable(job.name, "no transpiler's split_method is set")
