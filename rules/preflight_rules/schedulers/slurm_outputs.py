"""Ports, output files and log folders that array tasks or requeued runs share."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with

#: Patterns that make file names differ between array tasks or jobs.
_TASK_PATTERNS = ("%a", "%A", "%j", "%J", "%x_%a")


def _runs_tasks_at_once(stated: Stated[Launch]) -> bool:
    """Whether several tasks of the array may run at a time: `%1` after its range allows one."""
    return not all("%1" in text for text in texts(job_value(stated.settings[0])) or ("",))


@rule(
    "SLU011",
    "array-tasks-share-a-port",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch of a job array names a port",
    each=launches_with("job_array", "master_port", where=_runs_tasks_at_once),
)
def array_tasks_share_a_port(question: LaunchQuestion) -> Verdict | None:
    """All tasks of a job array use the same port and may run on the same node.

    What it checks: A header with `--array` and a launch whose port is a fixed number, where nothing keeps two tasks of
    the array from sharing a node (`--exclusive`, all eight GPUs).

    Why it matters: The second task on a node stops with "address already in use", or its ranks join those of the first.

    Example: `#SBATCH --array=0-7 --gres=gpu:1` and `torchrun --master_port=29500`.

    Fix: `--master_port=$((29500 + SLURM_ARRAY_TASK_ID))`, or `--standalone` on one node.

    Known limits: A node with fewer than eight GPUs may be filled by one task; the size of a node is not known from
    files.
    """
    arrays, ports = question.of
    job, scope = question.of.job, question.of.scope
    held = numbers(job_value(job.setting("gpus_per_node", scope)))
    if job.setting("exclusive", scope) or (held and min(held) >= 8) or not numbers(job_value(ports)):
        return None
    return failed(
        question.subject,
        f"{quoted(arrays[0])} starts this launch many times, always with port {placed(ports[0])}: two"
        " on one node collide.",
        at=ports[0],
        also=((arrays[0], "the array"),),
        remedy="Add $SLURM_ARRAY_TASK_ID to the port, or use --standalone if each task runs on one node.",
    )


@rule("SLU012", "array-tasks-share-an-output-file", severity=Severity.WARNING)
def array_tasks_share_an_output_file(job: Job) -> Iterator[Verdict]:
    """All tasks of a job array write to one file.

    What it checks: With `--array`, that the pattern of `--output` has %a, %A or %j in it.

    Why it matters: Each task that starts truncates the file, and the lines of tasks that run at the same time are
    interleaved.

    Example: `#SBATCH --array=0-7 --output=train.log`.

    Fix: `--output=train_%A_%a.log`.

    Known limits: With `--open-mode=append` nothing is lost, only interleaved; the finding is informational then.
    """
    arrays, outputs = job.about("job_array"), job.about("output_file")
    if not arrays or not outputs:
        yield not_applicable(job.name, "no job array names its output file")
        return
    verdict = undecided(job.name, (arrays[0], outputs[0]))
    patterns = texts(outputs[0].value)
    if verdict is None and any("<" in text for text in patterns):
        verdict = unknown(job.name, f"{quoted(outputs[0])} is a placeholder", at=outputs[0])
    if (
        verdict is None
        and patterns
        and not any(mark in text for text in patterns for mark in _TASK_PATTERNS)
        and "/dev/null" not in patterns
    ):
        appends = any("append" in texts(claim.value) for claim in job.about("output_opened"))
        verdict = failed(
            job.name,
            f"{quoted(outputs[0])} is one file for all tasks of {placed(arrays[0])}: each task truncates it when it"
            f" starts.",
            at=outputs[0],
            also=((arrays[0], "the array"),),
            remedy="Put %A_%a into the name.",
            severity=Severity.INFO if appends else None,
        )
    yield verdict or passed(job.name)


@rule(
    "LOG001",
    "log-folder-made-too-late",
    severity=Severity.WARNING,
    otherwise="no header writes its output into a folder",
)
def log_folder_made_too_late(job: Job) -> Iterator[Verdict]:
    """The script itself creates the folder of its output file, which is too late.

    What it checks: `--output=logs/%j.out` in a script that itself runs `mkdir logs`.

    Why it matters: Slurm opens the file before it runs the script, and does not create folders. The first job on a
    fresh checkout ends at once, without a log that shows the reason.

    Example: `#SBATCH --output=logs/%j.out` and `mkdir -p logs` below it.

    Fix: Create the folder before calling sbatch, or keep it in the repository.

    Known limits: A folder that already exists is fine.
    """
    outputs, made = job.about("output_file"), job.about("directory_made")
    for claim in outputs:
        folders = {posixpath.dirname(text).removeprefix("./") for text in texts(claim.value)} - {""}
        if not folders:
            if claim.alternatives:
                continue
            yield unknown(job.name, f"the folder of {quoted(claim)} is unknown", at=claim)
            continue
        own = [c for c in made if c.span.path == claim.span.path]
        late = [c for c in own if {text.removeprefix("./") for text in texts(c.value)} & folders]
        if late:
            yield failed(
                job.name,
                f"{quoted(claim)} is opened before the script runs {quoted(late[0])} ({where(late[0])}): without the"
                " folder the job ends at once and leaves no log.",
                at=claim,
                also=((late[0], "too late"),),
                remedy="Create the folder before calling sbatch.",
            )
        else:
            yield passed(job.name)


@rule("FLT006", "requeued-job-empties-its-log", severity=Severity.INFO, profile="pedantic")
def requeued_job_empties_its_log(job: Job) -> Iterator[Verdict]:
    """A requeued job overwrites the log of its first run.

    What it checks: `--requeue`, or `scontrol requeue` in the script, without `--open-mode=append`.

    Why it matters: A requeued job keeps its id, so its output file keeps its name, and by default Slurm empties it:
    what led to the failure is gone.

    Example: `#SBATCH --requeue --output=%j.out`.

    Fix: `#SBATCH --open-mode=append`.

    Known limits: A site may have set JobFileAppend.
    """
    again = [c for c in (*job.about("requeue"), *job.about("requeues_itself")) if True in c.alternatives]
    if not again:
        yield not_applicable(job.name, "nothing requeues the job")
        return
    modes = job.about("output_opened")
    verdict = undecided(job.name, modes)
    if verdict is None and not any("append" in texts(claim.value) for claim in modes):
        verdict = failed(
            job.name,
            f"{quoted(again[0])} runs the job again under the same id, which empties its output file.",
            at=again[0],
            remedy="Add `#SBATCH --open-mode=append`.",
        )
    yield verdict or passed(job.name)
