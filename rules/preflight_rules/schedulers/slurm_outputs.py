"""What tasks of an array, and runs of a requeued job, write or listen on in common: ports, outputs, log folders."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import job_value, numbers, placed, quoted, texts, undecided, where

#: What makes the files of array tasks, or of jobs, different ones.
_APART = ("%a", "%A", "%j", "%J", "%x_%a")


@rule(
    "SLU011",
    "array-tasks-share-a-port",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#85604", "meta-pytorch/torchtune#392"),
)
def array_tasks_share_a_port(job: Job) -> Iterator[Verdict]:
    """All tasks of a job array meet at the same port, and may land on one node.

    What it checks:
        A header with `--array` and a launch whose port is a fixed number, where nothing keeps two tasks of the array
        from sharing a node (`--exclusive`, all eight GPUs).

    Why it matters:
        The second task on a node stops with "address already in use", or its ranks join those of the first.

    Example:
        `#SBATCH --array=0-7 --gres=gpu:1` and `torchrun --master_port=29500`.

    Fix:
        `--master_port=$((29500 + SLURM_ARRAY_TASK_ID))`, or `--standalone` on one node.

    Known limits:
        Small nodes are filled by fewer than eight GPUs; how many a node has no file tells.

    Evidence:
        pytorch/pytorch#85604, meta-pytorch/torchtune#392.
    """
    met = False
    for launch in job.launches:
        arrays = job.setting("job_array", launch.scope)
        ports = job.setting("master_port", launch.scope)
        if not arrays or not ports or all("%1" in text for text in texts(job_value(arrays)) or ("",)):
            continue
        met = True
        held = numbers(job_value(job.setting("gpus_per_node", launch.scope)))
        open_end = undecided(launch.id, (*arrays, *ports), launch)
        if open_end is not None:
            yield open_end
        elif job.setting("exclusive", launch.scope) or (held and min(held) >= 8) or not numbers(job_value(ports)):
            yield passed(launch.id)
        else:
            yield failed(
                launch.id,
                f"{quoted(arrays[0])} starts this launch many times, each with {placed(ports[0])} as its port: two on"
                " one node collide.",
                at=ports[0],
                also=((arrays[0], "the array"),),
                remedy="Add $SLURM_ARRAY_TASK_ID to the port, or take --standalone where a task stays on one node.",
            )
    if not met:
        yield not_applicable(job.name, "no launch of a job array names a port")


@rule(
    "SLU012",
    "array-tasks-share-an-output-file",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/sbatch.html#SECTION_FILENAME-PATTERN",),
)
def array_tasks_share_an_output_file(job: Job) -> Iterator[Verdict]:
    """All tasks of a job array write to one file.

    What it checks:
        With `--array`, that the pattern of `--output` has %a, %A or %j in it.

    Why it matters:
        Each task that starts empties the file, and the lines of those that run at once are mixed up.

    Example:
        `#SBATCH --array=0-7 --output=train.log`.

    Fix:
        `--output=train_%A_%a.log`.

    Known limits:
        With `--open-mode=append` nothing is lost, only mixed up; it is information then.

    Evidence:
        sbatch's manual, filename pattern.
    """
    arrays, outputs = job.about("job_array"), job.about("output_file")
    if not arrays or not outputs:
        yield not_applicable(job.name, "no job array names its output file")
        return
    open_end = undecided(job.name, (arrays[0], outputs[0]))
    patterns = texts(outputs[0].value)
    if open_end is not None:
        yield open_end
    elif patterns and not any(mark in text for text in patterns for mark in _APART) and "/dev/null" not in patterns:
        appends = any("append" in texts(claim.value) for claim in job.about("output_opened"))
        yield failed(
            job.name,
            f"{quoted(outputs[0])} is one file for all tasks of {placed(arrays[0])}: each that starts empties it.",
            at=outputs[0],
            also=((arrays[0], "the array"),),
            remedy="Put %A_%a into the name.",
            severity=Severity.INFO if appends else None,
        )
    else:
        yield passed(job.name)


@rule(
    "LOG001",
    "log-folder-made-too-late",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/sbatch.html#SECTION_FILENAME-PATTERN",),
)
def log_folder_made_too_late(job: Job) -> Iterator[Verdict]:
    """The folder of the output file is made by the script whose output is to go there.

    What it checks:
        `--output=logs/%j.out` in a script that itself runs `mkdir logs`.

    Why it matters:
        Slurm opens the file before it runs the script, and makes no folder. The first job on a fresh checkout ends at
        once, without a log that would say why.

    Example:
        `#SBATCH --output=logs/%j.out` and `mkdir -p logs` below it.

    Fix:
        Make the folder before sbatch is called, or keep it in the repository.

    Known limits:
        A folder that is there anyway does no harm.

    Evidence:
        sbatch's manual, --output.
    """
    outputs, made = job.about("output_file"), job.about("directory_made")
    met = False
    for claim in outputs:
        folders = {posixpath.dirname(text).removeprefix("./") for text in texts(claim.value)} - {""}
        if not folders:
            if claim.alternatives:
                continue
            met = True
            yield unknown(job.name, f"which folder {quoted(claim)} names", at=claim)
            continue
        met = True
        own = [c for c in made if c.span.path == claim.span.path]
        late = [c for c in own if {text.removeprefix("./") for text in texts(c.value)} & folders]
        if late:
            yield failed(
                job.name,
                f"{quoted(claim)} is opened before the script runs {quoted(late[0])} ({where(late[0])}): without the"
                " folder the job ends at once and leaves no log.",
                at=claim,
                also=((late[0], "too late"),),
                remedy="Make the folder before sbatch is called.",
            )
        else:
            yield passed(job.name)
    if not met:
        yield not_applicable(job.name, "no header writes its output into a folder")


@rule(
    "FLT006",
    "requeued-job-empties-its-log",
    severity=Severity.INFO,
    evidence=(
        "https://slurm.schedmd.com/sbatch.html#OPT_open-mode",
        "https://slurm.schedmd.com/sbatch.html#OPT_requeue",
    ),
)
def requeued_job_empties_its_log(job: Job) -> Iterator[Verdict]:
    """A job that is queued again empties the log of its first run.

    What it checks:
        `--requeue`, or `scontrol requeue` in the script, without `--open-mode=append`.

    Why it matters:
        A requeued job keeps its id, so its output file keeps its name, and by default Slurm empties it: what led to
        the failure is gone.

    Example:
        `#SBATCH --requeue --output=%j.out`.

    Fix:
        `#SBATCH --open-mode=append`.

    Known limits:
        A site may have set JobFileAppend.

    Evidence:
        sbatch's manual, --open-mode.
    """
    again = [c for c in (*job.about("requeue"), *job.about("requeues_itself")) if True in c.alternatives]
    if not again:
        yield not_applicable(job.name, "nothing queues the job again")
        return
    modes = job.about("output_opened")
    open_end = undecided(job.name, modes)
    if open_end is not None:
        yield open_end
    elif any("append" in texts(claim.value) for claim in modes):
        yield passed(job.name)
    else:
        yield failed(
            job.name,
            f"{quoted(again[0])} runs the job again under the same id, and its output file is emptied then.",
            at=again[0],
            remedy="Add `#SBATCH --open-mode=append`.",
        )
