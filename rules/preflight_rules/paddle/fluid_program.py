"""Legacy Fluid: the transpiled program and its executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import each_claim
from preflight_rules.paddle.fluid import transpilers, transpiling_scopes


@rule(
    "FLU003",
    "distributed-table-not-served",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no embedding of a transpiled program specifies whether it is distributed",
)
def distributed_table_not_served(job: Job) -> Iterator[Verdict]:
    """An embedding with is_distributed=True that the transpiler cannot serve.

    What it checks: In a program that goes through the transpiler no embedding has `is_distributed=True`:
    `is_sparse=True` alone already keeps the table on the servers and fetches rows.

    Why it matters: `is_distributed` takes another path (`_replace_lookup_table_op_with_prefetch`). It needs
    `is_sparse=True`, allows one table in the whole program, updates it with plain SGD whatever the optimizer is, and in
    Fluid 1.4 to 1.8 stops with "list index out of range" or when the server starts.

    Example: `fluid.layers.embedding(x, size=[1000000, 8], is_sparse=True, is_distributed=True)` and `t.transpile(...)`.

    Fix: Remove `is_distributed` and set `is_sparse=True`.

    Known limits: Programs of Fluid before 1.3 with one table and SGD are correct.
    """
    for subject, scope in transpiling_scopes(job):
        for claim in job.about("embedding_distributed", scope):
            verdict = undecided(subject, (claim,))
            if verdict is None and set(claim.alternatives) == {True}:
                verdict = _not_served(job, subject, scope, claim)
            yield verdict or passed(subject)


def _not_served(job: Job, subject: str, scope: Scope, claim: Claim) -> Verdict:
    tables = [c for c in job.about("embedding_distributed", scope) if set(c.alternatives) == {True}]
    table = claim.because[0]
    sparse = any(
        True in other.alternatives
        for other in job.about("embedding_sparse", scope)
        if any(reason.span == table.span for reason in other.because)
    )
    optimizers = [c for c in job.about("optimizer", scope) if texts(c.value) not in ((), ("",), ("SGD",))]
    also: list[tuple[Claim, str]] = []
    if not sparse:
        why = "needs `is_sparse=True` too: without it every step sends the whole table"
    elif len(tables) > 1 and len(_names(job, scope, tables)) > 1:
        why = f"is set for {len(tables)} tables, but the transpiler supports only one"
        also = [(other, "another table") for other in tables if other is not claim][:3]
    elif optimizers:
        why = f"makes the servers update the table with plain SGD instead of {texts(optimizers[0].value)[0]}"
        also = [(optimizers[0], "the optimizer")]
    else:
        why = "is replaced by a prefetch that fails in the transpiler of Fluid 1.4 to 1.8"
    transpiler = job.about("transpiler", scope)[0]
    return failed(
        subject,
        f"{quoted(claim)} {why} ({where(transpiler)} transpiles the program).",
        at=claim,
        also=(*also, (transpiler, "the transpiler")),
        remedy="Remove `is_distributed` and set `is_sparse=True`: the servers then keep the table as well.",
    )


def _names(job: Job, scope: Scope, tables: Sequence[Claim]) -> set[str]:
    """The parameters of several tables; an unnamed one counts as separate."""
    found = set()
    for index, table in enumerate(tables):
        named = [c for c in job.about("embedding_parameter", scope) if c.because[:1] == table.because[:1]]
        name = "".join(texts(named[0].value)) if named else ""
        found.add(name or f"#{index}")
    return found


@rule(
    "FLU004",
    "trainers-run-unequal-steps",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no loop depends on the trainer's index",
)
def trainers_run_unequal_steps(job: Job) -> Iterator[Verdict]:
    """In synchronous training some trainers leave the loop over batches early.

    What it checks: No loop of a program that updates synchronously ends or skips a step under a condition on the
    trainer's own index.

    Why it matters: Each step waits for all trainers. Those that still have batches wait for the ones that have left,
    until the RPC deadline ends them; a collective waits forever.

    Example: `if trainer_id != 3 and batch_id > 100: break`.

    Fix: Give every trainer the same number of steps, or update asynchronously.

    Known limits: Only an `if` directly in the loop that names the trainer's index, rank or worker index is seen.
    """
    for subject, scope, _, claim in each_claim(job, "rank_dependent_steps"):
        stated = job.about("ps_update_mode", scope)
        modes = {text for mode in stated for text in texts(mode.value)}
        if modes == {"sync"}:
            yield failed(
                subject,
                f"{quoted(claim)} ends the loop for some trainers only, but {placed(stated[0])} updates synchronously:"
                " the others wait until the RPC deadline.",
                at=claim,
                also=((stated[0], "synchronous updates"),),
                remedy="Let every trainer run the same number of steps, or update asynchronously.",
            )
        elif not modes:
            yield unknown(subject, f"{quoted(claim)}: the update mode is not given", at=claim)
        else:
            yield passed(subject)


@rule(
    "FLU005",
    "memory-optimize-renames-gradients",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 1.6 (Fluid)",
    otherwise="no transpiled program is memory-optimized",
)
def memory_optimize_renames_gradients(job: Job) -> Iterator[Verdict]:
    """memory_optimize of a transpiled program may reuse the variables of gradients.

    What it checks: A script that transpiles its program passes `skip_grads=True` to memory_optimize.

    Why it matters: The transpiler sends gradients by the names of their variables. memory_optimize renames and reuses
    them: the servers then get something else, or the transpiler finds no gradient at all.

    Example: `fluid.memory_optimize(program)` and `t.transpile(...)`.

    Fix: Write `fluid.memory_optimize(program, skip_grads=True)`.

    Known limits: From 1.5 on `skip_grads` is true by default, and from 1.6 on memory_optimize does nothing.
    """
    for subject, scope in transpiling_scopes(job):
        for claim in job.about("memory_optimize_skips_gradients", scope):
            transpiler = job.about("transpiler", scope)[0]
            undecided_verdict = None if claim.alternatives else undecided(subject, (claim,))
            if set(claim.alternatives) != {False}:
                yield undecided_verdict or passed(subject)
                continue
            yield failed(
                subject,
                f"{quoted(claim)} may reuse the variables of gradients, which {placed(transpiler)} sends by name.",
                at=claim,
                also=((transpiler, "the transpiler"),),
                remedy="Give `skip_grads=True`.",
            )


@rule(
    "FLU006",
    "executor-not-told-of-trainers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no program in nccl2 mode runs on a ParallelExecutor",
)
def executor_not_told_of_trainers(job: Job) -> Iterator[Verdict]:
    """A program in nccl2 mode runs on a ParallelExecutor without num_trainers and trainer_id.

    What it checks: If the transpiler is in nccl2 mode, ParallelExecutor gets `num_trainers` and `trainer_id`, or the
    BuildStrategy has them.

    Why it matters: Without them the executor averages over the GPUs of its own machine only: every trainer silently
    trains its own model.

    Example: `config.mode = "nccl2"` and `fluid.ParallelExecutor(use_cuda=True, loss_name=loss.name)`.

    Fix: Give `num_trainers=` and `trainer_id=`.

    Known limits: An executor that shares its variables with another is used for evaluation and not checked.
    """
    for subject, scope in transpiling_scopes(job):
        modes = {mode for _, mode in transpilers(job, scope)}
        executors = job.about("executor_knows_trainers", scope)
        if not executors or not modes & {"nccl2", ""}:
            continue
        transpiler = next(claim for claim, mode in transpilers(job, scope) if mode in ("nccl2", ""))
        blind = [claim for claim in executors if claim.alternatives == (False,)]
        if not blind:
            yield passed(subject)
        elif "nccl2" not in modes or blind[0].condition:
            yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
        else:
            yield failed(
                subject,
                f"{quoted(blind[0])} is given neither num_trainers nor trainer_id, but {placed(transpiler)} is in "
                "nccl2 mode: each trainer trains alone.",
                at=blind[0],
                also=((transpiler, "nccl2 mode"),),
                remedy="Give ParallelExecutor `num_trainers=` and `trainer_id=`.",
            )
