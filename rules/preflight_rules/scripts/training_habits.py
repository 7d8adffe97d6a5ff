"""What a training script does beside its steps: saving, profiling, sharing its model."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import SubjectQuestion, claims_about
from preflight_rules.scripts.script_facts import launches_of, runs_program, started_files, stated

#: A job that asks for at least this long loses much when a node fails, in seconds.
_LONG_S = 24 * 3600
#: With more files than this, one that was not read may save.
_FEW_FILES = 12


@rule(
    "FLT021",
    "long-job-saves-nothing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no job of a day or longer runs a training loop",
)
def long_job_saves_nothing(job: Job) -> Iterator[Verdict]:
    """A job of a day or longer saves nothing before its training ends.

    What it checks: A script that trains in a loop, in a job that asks for at least 24 hours, saves something inside a
    loop.

    Why it matters: With hundreds of GPUs a failure within a day is the rule: 466 interruptions in 54 days on 16,000
    GPUs. What was trained since the start is then lost, and at the time limit, too.

    Example: `#SBATCH --time=7-00:00:00` and one `torch.save` after the last epoch.

    Fix: Save model, optimizer and step every hour or so, and resume from the last one.

    Known limits: Any call that may save, in any file of the job, counts. A library that is not known may save: then the
    result is unknown.
    """
    for subject, saves in stated(job, "saves_while_training"):
        limits = [
            claim
            for launch in launches_of(job, saves)
            for claim in job.setting("time_limit_s", launch.scope)
            if numbers(claim.value) and min(numbers(claim.value)) >= _LONG_S
        ]
        if not limits or saves.span.path not in started_files(job):
            continue
        others = job.about("saves_while_training", saves.scope)
        if any(True in claim.alternatives for claim in others) or job.about("checkpoint_path", saves.scope):
            yield passed(subject)
        elif job.about("exchange_libraries", saves.scope) or len(job.files) > _FEW_FILES:
            yield unknown(subject, f"a library or another file may save beside {quoted(saves)}", at=saves)
        else:
            yield failed(
                subject,
                f"{placed(limits[0])} asks for {min(numbers(limits[0].value)) // 3600} hours, but the loop of"
                f" {quoted(saves)} saves nothing: a failure loses all of it.",
                at=saves,
                also=((limits[0], "a long job"),),
                remedy="Save model, optimizer and step at intervals, and resume from the last checkpoint.",
            )


@rule(
    "TRN024",
    "every-step-profiled",
    severity=Severity.WARNING,
    otherwise="no training loop is profiled",
    passes_with=("saves_while_training",),
)
def every_step_profiled(job: Job) -> Iterator[Verdict]:
    """A profiler records every step of the training.

    What it checks: A profiler of torch or Paddle that is on around a training loop has a schedule, or is stopped inside
    the loop.

    Why it matters: Every operator of every step is recorded in host memory: steps take longer, and after some hours the
    process is killed for its memory.

    Example: `with torch.profiler.profile(with_stack=True): ` around the loop over epochs.

    Fix: Profile some steps: `schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)` and `prof.step()`.

    Known limits: A loop of a few steps that is made for profiling is reported as well.
    """
    for subject, profiler in stated(job, "profiles_every_step"):
        if profiler.condition or not runs_program(job):
            yield unknown(subject, f"whether {quoted(profiler)} is on depends on the run", at=profiler)
            continue
        yield failed(
            subject,
            f"{joined(profiler.alternatives)} is on for every step of the training loop.",
            at=profiler,
            remedy="Give it a schedule of some steps, or remove it from real runs.",
        )


@rule(
    "PGR019",
    "model-of-processes-not-shared",
    severity=Severity.WARNING,
    otherwise="no processes train one model",
    passes_with=("saves_while_training",),
    each=claims_about("model_not_shared"),
)
def model_of_processes_not_shared(question: SubjectQuestion) -> Verdict | None:
    """Several processes train one model that is not in shared memory (Hogwild).

    What it checks: A model that is passed to several `Process`es which step an optimizer over its parameters is in
    shared memory.

    Why it matters: Each forked process trains a copy of its own, which is gone when the process ends. The model that
    the parent saves is the untrained one.

    Example: `mp.Process(target=train, args=(rank, model))` in a loop, without `model.share_memory()`.

    Fix: `model.share_memory()` before the processes start.

    Known limits: With the start methods spawn and forkserver torch shares the parameters by itself; scripts that name
    them are not judged.
    """
    (model,) = question.claims
    return failed(
        question.subject,
        f"{quoted(model)} gives each process a copy of {joined(model.alternatives)}: what they train is lost.",
        at=model,
        remedy=f"Call {joined(model.alternatives)}.share_memory() before the processes start.",
    )
