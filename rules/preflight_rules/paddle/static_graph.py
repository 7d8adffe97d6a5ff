"""Static programs of Paddle: the order in which they are made, cloned and run."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.paddle.fleet import once
from preflight_rules.reading import quoted, where


@rule(
    "PDL002",
    "test-program-cloned-after-minimize",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    evidence=(
        "PaddlePaddle/Paddle#19397",
        "PaddlePaddle/Paddle#23796",
        "PaddlePaddle/Paddle#11661",
    ),
)
def test_program_cloned_after_minimize(job: Job) -> Iterator[Verdict]:
    """The program for evaluation is cloned after the optimizer has been added to it.

    What it checks:
        `clone(for_test=True)` stands before `minimize` in the same function.

    Why it matters:
        Before Fluid 1.6 the clone keeps the backward and optimizer operators: evaluating changes the parameters. With
        parameter servers it also sends gradients of the test data.

    Example:
        `sgd.minimize(loss)` and then `test_program = main_program.clone(for_test=True)`.

    Fix:
        Clone first, then minimize.

    Known limits:
        From 1.6 on the clone is pruned; a script that does not use `paddle.fluid` gets a hint only.

    Evidence:
        PaddlePaddle/Paddle#19397 (mended in 1.6), #23796 and #11661 (what it does).
    """
    met = False
    for subject, scope, claim in once(job, "test_program_cloned"):
        met = True
        if claim.alternatives != ("after",):
            yield passed(subject) if claim.alternatives else unknown(subject, f"{quoted(claim)}: order unknown")
            continue
        if claim.condition:
            yield unknown(subject, f"{quoted(claim)} holds under `{claim.condition}`", at=claim)
            continue
        first = claim.because[0]
        old = "fluid" in claim.spelling + first.spelling or bool(job.about("transpiler", scope))
        yield failed(
            subject,
            f"{quoted(claim)} stands behind {quoted(first)} ({where(first)}): before Fluid 1.6 the test program still"
            " holds the optimizer and changes the parameters.",
            at=claim,
            also=((first, "minimize"),),
            remedy="Clone the program before minimize.",
            severity=None if old else Severity.INFO,
        )
    if not met:
        yield not_applicable(job.name, "no program is cloned for a test and minimized in one function")


@rule(
    "PDL004",
    "startup-program-never-run",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#8383", "PaddlePaddle/Paddle#15879"),
)
def startup_program_never_run(job: Job) -> Iterator[Verdict]:
    """A static program is trained without its startup program having been run.

    What it checks:
        A script that minimizes a static program and feeds it to an Executor also runs a startup program, or loads
        parameters.

    Why it matters:
        The parameters have no memory: the first step stops with "Tensor holds no memory", on every rank, after the
        whole job has been placed and started.

    Example:
        `exe.run(main_program, feed=..., fetch_list=[loss])` without `exe.run(startup_program)`.

    Fix:
        `exe.run(paddle.static.default_startup_program())` before the first step.

    Known limits:
        A program run under another name, without feed and fetch, is taken for the startup program.

    Evidence:
        PaddlePaddle/Paddle#8383, PaddlePaddle/Paddle#15879.
    """
    met = False
    for subject, _, claim in once(job, "startup_program_run"):
        met = True
        if claim.alternatives != (False,):
            yield passed(subject)
        elif claim.condition:
            yield unknown(subject, f"{quoted(claim)} runs under `{claim.condition}`", at=claim)
        else:
            yield failed(
                subject,
                f"{quoted(claim)} trains a program whose startup program is never run: its parameters are empty.",
                at=claim,
                remedy="Run the startup program first: `exe.run(startup_program)`.",
            )
    if not met:
        yield not_applicable(job.name, "no script trains a static program by itself")
