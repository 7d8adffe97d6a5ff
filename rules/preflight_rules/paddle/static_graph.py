"""Static programs of Paddle: the order in which they are built, cloned and run."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, quoted, where
from preflight.plugins.questions import SubjectQuestion, claims_about
from preflight_rules.paddle.fleet import distinct_claims


@rule(
    "PDL002",
    "test-program-cloned-after-minimize",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no program is cloned for a test and minimized in one function",
)
def test_program_cloned_after_minimize(job: Job) -> Iterator[Verdict]:
    """The program for evaluation is cloned after the optimizer has been added to it.

    What it checks: `clone(for_test=True)` comes before `minimize` in the same function.

    Why it matters: Before Fluid 1.6 the clone keeps the backward and optimizer operators: evaluation changes the
    parameters. With parameter servers it also sends gradients of the test data.

    Example: `sgd.minimize(loss)` and then `test_program = main_program.clone(for_test=True)`.

    Fix: Clone first, then minimize.

    Known limits: From 1.6 on the clone is pruned; a script that does not use `paddle.fluid` gets a hint only.
    """
    for subject, scope, claim in distinct_claims(job, "test_program_cloned"):
        if claim.alternatives != ("after",):
            yield passed(subject) if claim.alternatives else unknown(subject, f"{quoted(claim)}: the order is unknown")
            continue
        first = claim.because[0]
        old = "fluid" in claim.spelling + first.spelling or bool(job.about("transpiler", scope))
        yield undecided(subject, (claim,)) or failed(
            subject,
            f"{quoted(claim)} comes after {quoted(first)} ({where(first)}): before Fluid 1.6 the test program still"
            " holds the optimizer and changes the parameters.",
            at=claim,
            also=((first, "minimize"),),
            remedy="Clone the program before minimize.",
            severity=None if old else Severity.INFO,
        )


@rule(
    "PDL004",
    "startup-program-never-run",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script trains a static program",
)
def startup_program_never_run(job: Job) -> Iterator[Verdict]:
    """A static program is trained without running its startup program.

    What it checks: A script that minimizes a static program and feeds it to an Executor also runs a startup program, or
    loads parameters.

    Why it matters: The parameters have no memory: the first step stops with "Tensor holds no memory", on every rank,
    after the whole job has been placed and started.

    Example: `exe.run(main_program, feed=..., fetch_list=[loss])` without `exe.run(startup_program)`.

    Fix: `exe.run(paddle.static.default_startup_program())` before the first step.

    Known limits: A program run under another name, without feed and fetch, is treated as the startup program.
    """
    for subject, _, claim in distinct_claims(job, "startup_program_run"):
        if claim.alternatives != (False,):
            yield passed(subject)
        else:
            yield undecided(subject, (claim,)) or failed(
                subject,
                f"{quoted(claim)} trains a program whose startup program is never run: its parameters are empty.",
                at=claim,
                remedy="Run the startup program first: `exe.run(startup_program)`.",
            )


@rule(
    "PDL029",
    "evaluation-clone-keeps-training-mode",
    severity=Severity.WARNING,
    otherwise="no program is cloned for evaluation",
    passes_with=("test_program_cloned",),
    each=claims_about("evaluation_clone_trains"),
)
def evaluation_clone_keeps_training_mode(question: SubjectQuestion) -> Verdict | None:
    """A program is cloned for evaluation without `for_test=True`.

    What it checks: `clone` of a program whose variable or function is named for evaluation gets `for_test=True`.

    Why it matters: The clone keeps dropout, the batch statistics of BatchNorm, and after `minimize` the optimizer:
    evaluating gives random results, and trains on the data for evaluation.

    Example: `test_program = fluid.default_main_program().clone()`.

    Fix: `test_program = main_program.clone(for_test=True)`, before `minimize`.

    Known limits: The purpose is known from names only: test, eval, infer, valid or pred. A `for_test` that is computed
    is not judged.
    """
    (claim,) = question.claims
    return failed(
        question.subject,
        f"{quoted(claim)} is used for evaluation, but without for_test=True it is a program for training.",
        at=claim,
        remedy="Clone with for_test=True, before minimize.",
    )


@rule(
    "PDL030",
    "program-input-not-fed",
    severity=Severity.ERROR,
    otherwise="no script trains a static program",
    passes_with=("startup_program_run",),
)
def program_input_not_fed(job: Job) -> Iterator[Verdict]:
    """A run of a static program does not feed an input that its loss needs.

    What it checks: Each `Executor.run` that fetches the loss, and each data set of `train_from_dataset`, gives every
    data layer that the loss is computed from.

    Why it matters: The input has no memory: the first step stops with "Tensor holds no memory" or "feed ... not found",
    on every rank, after the whole job has been placed and started.

    Example: `exe.run(feed={"x": image}, fetch_list=[loss])`, where the loss needs `y` as well.

    Fix: Give all inputs, under the names of their data layers.

    Known limits: Only where layers, loss and feed are in one script, with literal names. A program that reads through
    `py_reader` or a generator is not judged.
    """
    for subject, _, claim in distinct_claims(job, "inputs_not_fed"):
        names = joined(name for value in claim.alternatives if isinstance(value, tuple) for name in value)
        if claim.condition and not _is_role(claim.condition):
            yield unknown(subject, f"{quoted(claim)} is given under `{claim.condition}`", at=claim)
            continue
        yield failed(
            subject,
            f"{quoted(claim)} leaves out {names}, which the loss is computed from: the first step stops.",
            at=claim,
            remedy=f"Give {names} too, under the name of its data layer.",
        )


def _is_role(condition: str) -> bool:
    """Whether a branch is taken by trainers: it asks for the role of the process."""
    words = ("is_worker", "is_server", "PSERVER", "TRAINER", "role")
    return " and " not in condition and any(word in condition for word in words)


@rule(
    "PDL031",
    "served-table-without-servers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script runs a program with a table of servers",
)
def served_table_without_servers(job: Job) -> Iterator[Verdict]:
    """A table that only parameter servers hold is used in a program that runs without any.

    What it checks: A script with `sparse_embedding`, or an embedding with `is_distributed=True`, starts Fleet or
    transpiles its program.

    Why it matters: The trainer has no such table: rows are fetched from a server. Run locally, the program stops at its
    first step or looks up a table that is never initialised.

    Example: `paddle.static.nn.sparse_embedding(ids, size=[1000000, 16])` in a script started by `python train.py`.

    Fix: Locally: `paddle.static.nn.embedding(ids, size, is_sparse=True)`. Otherwise start it with servers.

    Known limits: Only where the script itself minimizes and runs its program, and no other file of the job starts
    Fleet.
    """
    for subject, scope, table in distinct_claims(job, "served_table"):
        runs = [claim for claim in job.about("startup_program_run", scope) if claim.span.path == table.span.path]
        if not runs:
            continue
        if job.about("waits_for_servers", scope) or job.about("transpiler", scope) or job.about("ps_mode", scope):
            yield passed(subject)
        elif table.condition or len(job.files) > _FEW_FILES:
            yield unknown(subject, f"another file may start servers for {quoted(table)}", at=table)
        else:
            yield failed(
                subject,
                f"{quoted(table)} keeps its table on parameter servers, but nothing starts Fleet or transpiles the"
                " program.",
                at=table,
                remedy="Run it with parameter servers, or use embedding(..., is_sparse=True) without is_distributed.",
            )


#: With more files than this, another one may start servers.
_FEW_FILES = 6
