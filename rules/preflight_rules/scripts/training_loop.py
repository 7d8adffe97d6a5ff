"""Training loops in which one rank does something else than the others, who then wait for it for ever."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import quoted, spoken, subjects
from preflight_rules.scripts.script_reading import is_run, on_several_nodes, stated, surely_one_rank


@rule(
    "TRN001",
    "rank-local-exit-from-loop",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://huggingface.co/docs/accelerate/basic_tutorials/troubleshooting",
        "Lightning-AI/pytorch-lightning#20404",
    ),
)
def rank_local_exit_from_loop(job: Job) -> Iterator[Verdict]:
    """A rank leaves a loop, or skips a step of it, on a value that only it knows.

    What it checks:
        In a loop whose step is a collective (`backward` of a distributed model, an all-reduce, a barrier), no `break`
        or `continue` hangs on the rank's own loss, metric or clock.

    Why it matters:
        The ranks do not agree on when to leave. The first one out ends or goes on to other collectives, and the others
        wait for it in the step until the time-out, usually 10 to 30 minutes, kills the job.

    Example:
        `accelerator.backward(loss)` and `if loss.item() < best: break` in one loop.

    Fix:
        Let the ranks agree first: all-reduce or broadcast the decision, or use `accelerator.set_trigger()` and
        `check_trigger()`.

    Known limits:
        A condition that is computed in another file cannot be told and stays silent. A value that happens to be the
        same on every rank (every rank reads the same validation data) does no harm.

    Evidence:
        Accelerate documentation, Troubleshooting, Early stopping; Lightning-AI/pytorch-lightning#20404.
    """
    met = False
    for subject, leaving in stated(job, "rank_local_exit"):
        met = True
        step = leaving.because[0] if leaving.because else leaving
        kind = spoken(leaving.alternatives)
        if surely_one_rank(job, leaving):
            yield passed(subject)
            continue
        if not is_run(job):
            yield unknown(subject, "nothing here runs this loop, on one rank or several", at=leaving)
            continue
        what = "skips the rest of the step" if kind == "continue" else "leaves the loop"
        under = quoted(leaving) if kind == "while" else f"`{kind}` under {quoted(leaving)}"
        yield failed(
            subject,
            f"{under}: each rank {what} by what it alone knows, and the others wait for it in {quoted(step)} (line"
            f" {step.span.line}).",
            at=leaving,
            also=((step, "the others wait here"),),
            remedy="Let all ranks decide together: all-reduce or broadcast the condition before it is tested"
            " (Accelerate: set_trigger() and check_trigger()).",
        )
    yield from _rest(job, met, "uses_ddp", "no loop is left on a value that one rank knows")


@rule(
    "TRN002",
    "collective-under-rank-condition",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "deepspeedai/DeepSpeed#2993",
        "deepspeedai/DeepSpeed#801",
        "https://docs.pytorch.org/docs/stable/distributed.html",
    ),
)
def collective_under_rank_condition(job: Job) -> Iterator[Verdict]:
    """A collective stands in a branch that only some ranks take.

    What it checks:
        Barriers, reductions, broadcasts and `save_checkpoint` of a DeepSpeed engine do not stand under `rank == 0`
        or the like, unless the other ranks come to one as well in the same function.

    Why it matters:
        A collective ends when every rank has come to it. The ranks in the branch wait until the time-out for those
        that went past.

    Example:
        `if rank == 0: model_engine.save_checkpoint(path)`; every rank has to call it, because each saves its part.

    Fix:
        Move the call out of the branch, and leave in it only what one rank does for itself.

    Known limits:
        Collectives over a group of their own (`group=...`) stay silent. Another function may hold the counterpart.

    Evidence:
        deepspeedai/DeepSpeed#2993 and #801 (save_checkpoint on one rank hangs); torch.distributed documentation.
    """
    met = False
    for subject, call in stated(job, "guarded_collective"):
        met = True
        guard = call.because[0] if call.because else call
        if surely_one_rank(job, call):
            yield passed(subject)
        elif not is_run(job):
            yield unknown(subject, "nothing here runs this; whoever does may have the counterpart", at=call)
        else:
            yield failed(
                subject,
                f"{quoted(call)} waits for every rank, but stands under {quoted(guard)} (line {guard.span.line}), which"
                f" holds for {spoken(call.alternatives)} only.",
                at=call,
                also=((guard, "only for " + spoken(call.alternatives)),),
                remedy="Move it out of the branch, so that every rank calls it.",
                waits_at="collective",
            )
    yield from _rest(job, met, "backend", "no collective stands under a condition on the rank")


@rule(
    "TRN003",
    "group-destroyed-after-failure",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("goodfire-ai/spd#552", "https://docs.pytorch.org/docs/stable/distributed.html#shutdown"),
)
def group_destroyed_after_failure(job: Job) -> Iterator[Verdict]:
    """A rank that fails waits for the others in its clean-up instead of ending.

    What it checks:
        `destroy_process_group` and barriers do not stand in the `finally` or `except` around the training.

    Why it matters:
        A rank that has failed (out of memory inside a collective) comes to the clean-up while the others are still in
        the collective. Tearing down the group waits for them, they wait for it, and no process ends: the launcher and
        --kill-on-bad-exit never see an exit code, and the nodes stay taken until the time limit.

    Example:
        `try: main()` with `finally: dist.destroy_process_group()` on eight nodes for seven days.

    Fix:
        Destroy the group only after a run that succeeded (`else:` of the try, or the last line of main), and let an
        exception end the process.

    Known limits:
        On one node, or where the number of nodes is unknown, it is information only: the launcher mostly ends the
        other ranks in time.

    Evidence:
        goodfire-ai/spd#552 (two jobs of 64 GPUs did nothing for nine hours); torch.distributed documentation, Shutdown.
    """
    met = False
    for subject, call in stated(job, "group_left_on_failure"):
        met = True
        if surely_one_rank(job, call):
            yield passed(subject)
        elif not is_run(job):
            yield unknown(subject, "nothing here runs this", at=call)
        else:
            nodes = on_several_nodes(job, call)
            limit = next(iter(job.setting("time_limit_s")), None)
            over = f" on each of {nodes} nodes" if nodes else ""
            until = f", until {quoted(limit)} ends it" if limit is not None else ""
            yield failed(
                subject,
                f"{quoted(call)} runs when a rank has failed{over}: it waits for ranks that wait in a collective, so"
                f" nothing exits and nobody is told{until}.",
                at=call,
                also=((limit, "holds the nodes so long"),) if limit is not None else (),
                remedy="Call it only after success (at the end of the run, or in the `else` of the try), and let the"
                " exception end the process.",
                severity=None if nodes else Severity.INFO,
            )
    yield from _rest(job, met, "backend", "no group is torn down after a failure")


@rule(
    "TRN006",
    "step-failure-swallowed",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#44353", "facebookresearch/fairseq#708"),
)
def step_failure_swallowed(job: Job) -> Iterator[Verdict]:
    """A rank whose step failed goes on with the next batch, while the others wait in the failed one.

    What it checks:
        A handler for failures of any kind (RuntimeError, out of memory, Exception) around a step that is a collective
        ends the rank, hands the failure on, or lets the ranks agree; it does not just go on with the loop.

    Why it matters:
        The others are in the all-reduce of the step that failed here. The next collective of this rank is another one:
        the job hangs until the time-out, or adds up gradients of different batches.

    Example:
        `try: loss.backward()` with `except RuntimeError: optimizer.zero_grad()` in the loop over a loader.

    Fix:
        Let the exception end the process and the launcher restart the job, or all-reduce "did it fail" before every
        rank skips the step.

    Known limits:
        A handler that calls something in another file which does that is not followed.

    Evidence:
        pytorch/pytorch#44353 (one process catches the exception, the others get blocked), facebookresearch/fairseq#708.
    """
    met = False
    for subject, handler in stated(job, "step_failure_swallowed"):
        met = True
        step = handler.because[0] if handler.because else handler
        if surely_one_rank(job, handler):
            yield passed(subject)
        elif not is_run(job):
            yield unknown(subject, "nothing here runs this loop, on one rank or several", at=handler)
        else:
            yield failed(
                subject,
                f"{quoted(handler)} goes on with the loop when {quoted(step)} (line {step.span.line}) has failed on"
                " this rank; the others wait in it.",
                at=handler,
                also=((step, "the others wait here"),),
                remedy="Let the exception end the process, or all-reduce whether a rank has failed and skip the step on"
                " all of them.",
            )
    yield from _rest(job, met, "backend", "no loop goes on after a failed step")


def _rest(job: Job, met: bool, quantity: str, reason: str) -> Iterator[Verdict]:
    """Where nothing was found: fine for a script of several ranks, nothing to look at for any other."""
    if met:
        return
    if any(job.about(name) for name in (quantity, "uses_ddp", "uses_fsdp", "training_framework", "backend")):
        subject = next((subject for subject, _, _ in subjects(job)), job.name)
        yield passed(subject)
    else:
        yield not_applicable(job.name, reason)
