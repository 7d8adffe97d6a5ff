"""The steps of a batch script (cores and GPUs of each task), and ports, files and folders that array tasks or requeued
runs share.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    not_applicable,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight_rules.launches import certainly_one, certainly_several

#: Values of --gpu-bind that give each task one GPU.
_ONE_EACH = re.compile(r"(?:verbose,)?(?:single:1|per_task:1|closest)$")
#: Frameworks that use the local rank as device index.
_BY_LOCAL_RANK = ("--deepspeed", "--deepspeed_config", "--local_rank", "--local-rank")


@rule(
    "SLU005",
    "cores-not-inherited-by-step",
    severity=Severity.INFO,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    applies_to="Slurm 22.05 to 23.02",
    otherwise="no batch script requests cores of each task and runs a step",
)
def cores_not_inherited_by_step(job: Job) -> Iterator[Verdict]:
    """The cores requested in the header of a batch script do not reach srun.

    What it checks: `#SBATCH --cpus-per-task` is more than 1, and a step that does some work has neither `-c`,
    `--cpus-per-gpu` or `--cpu-bind` nor SRUN_CPUS_PER_TASK in its environment.

    Why it matters: In Slurm 22.05 and 23.02 srun does not inherit the value from sbatch. Each task is then bound to one
    core, and loader workers, NCCL's threads and the launcher's ranks share it: training is many times slower, without a
    warning.

    Example: `#SBATCH --cpus-per-task=10` and `srun ./train`.

    Fix: `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before the first srun, or `srun -c $SLURM_CPUS_PER_TASK`. Both
    are harmless in other versions.

    Known limits: Slurm before 22.05 and from 23.11 on passes the cores on; the cluster's version is not known from
    files, so this is informational. Some sites set the variable for everyone.
    """
    bare: list[tuple[Step, Claim]] = []
    for step in steps(job):
        requested = [c for c in job.setting("cpus_per_task", step.scope) if c.source == "slurm"]
        if not requested:
            continue
        own = step.about("step_cpus_per_task")
        undecided_verdict = undecided(step.subject, (*requested, *((own,) if own is not None else ())), step.launch)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif own is not None or not certainly_several(job_value(requested)):
            yield passed(step.subject)
        else:
            bare.append((step, requested[0]))
    if bare:
        # Several tasks on a node are bound to one core each; a single task may keep all cores of its node.
        bare.sort(key=lambda found: not found[0].several("step_tasks_per_node"))
        step, requested_cores = bare[0]
        yield failed(
            job.name,
            f"{placed(requested_cores)} requests the cores of each task, but {quoted(step.claim)} does not repeat it: "
            "srun of Slurm 22.05 and 23.02 does not inherit the number and gives each task one core.",
            at=step.claim,
            also=((requested_cores, "requested here"), *((other.claim, "the same") for other, _ in bare[1:8])),
            remedy="Put `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before srun, or give srun"
            " `--cpus-per-task=$SLURM_CPUS_PER_TASK`.",
            # Unsafe: a site may set the variable to something else.
            fix=make_fix(
                "pass the number of cores to srun",
                *(replace_text(each.claim, "srun", "srun --cpus-per-task=$SLURM_CPUS_PER_TASK") for each, _ in bare),
                safe=False,
            ),
        )


def _bound(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """The claims that give each task one GPU; empty if there are none, or if `--gpu-bind` overrides them."""
    binding = job.setting("gpu_bind", scope)
    exported = job.setting("env.SLURM_GPU_BIND", scope)
    if exported and not any(claim.scope.launch for claim in binding):
        # srun's own option wins over the variable, and the variable over the header.
        binding = exported
    if binding:
        found = texts(job_value(binding))
        undecided_verdict = any(isinstance(claim.value, Unresolved) for claim in binding)
        return binding if undecided_verdict or (found and all(_ONE_EACH.match(text) for text in found)) else ()
    each = job.setting("gpus_per_task", scope)
    return each if each and (certainly_one(job_value(each)) or not numbers(job_value(each))) else ()


@rule(
    "SLU006",
    "task-sees-one-gpu-but-indexes-local-rank",
    severity=Severity.ERROR,
    otherwise="srun gives no task its own GPU",
    each=launches_with(_bound, "tasks_per_node", where=lambda stated: stated.launch.launcher == "srun"),
)
def task_sees_one_gpu_but_indexes_local_rank(question: LaunchQuestion) -> Verdict | None:
    """Each task sees one GPU, but its framework uses the local rank as GPU index.

    What it checks: Where srun starts several ranks on a node itself: `--gpus-per-task=1` (or `--gpu-bind=single:1`,
    `per_task:1`) together with a program that picks its device by local rank: DeepSpeed, or whatever is given
    LOCAL_RANK; or with a Lightning Trainer that asks for several devices, which is an error.

    Why it matters: Every task sees its own GPU as device 0. Local rank 1 asks for device 1 and stops with "invalid
    device ordinal", and Lightning refuses devices that the task does not see; what gets through cannot use direct
    transfers between the GPUs of a node.

    Example: `#SBATCH --ntasks-per-node=8 --gpus-per-task=1` and `srun python train.py --deepspeed ds.json`.

    Fix: `#SBATCH --gpus-per-node=8` in place of `--gpus-per-task=1`, or `--gpu-bind=none` beside it.

    Known limits: A script that uses device 0 where only one is visible is correct; nothing is reported for a program
    that is not known to use its local rank. It is a warning where the script counts its devices or handles the failure,
    and where srun has a number of GPUs of its own.
    """
    bound, tasks = question.of
    job, launch = question.of.job, question.of.launch
    if not certainly_several(job_value(tasks)):
        return None
    devices = _lightning_devices(job, launch.scope)
    if devices is not None:
        return failed(
            question.subject,
            f"{quoted(bound[0])} shows each task one GPU, but {placed(devices)} makes Lightning ask for"
            f" {numbers(devices.value)[0]} of them in each: it stops because the task sees only GPU 0.",
            at=bound[0],
            also=((devices, "asked for here"), (launch, "started here")),
            remedy=f"Ask for `--gpus-per-node={numbers(devices.value)[0]}` in its place, or add `--gpu-bind=none`.",
            severity=Severity.WARNING if _is_overridden(job, bound[0], launch.scope) else None,
        )
    why = _by_local_rank(job, launch.arguments, launch.scope)
    if not why:
        return unknown(launch.id, "whether the program uses its local rank as GPU index is unknown", at=bound[0])
    count = numbers(job_value(tasks))[0]
    return failed(
        question.subject,
        f"{quoted(bound[0])} gives each of the {count} tasks of a node {_visible(bound[0])}, but {why} uses"
        f" its local rank as device index, 0 to {count - 1}.",
        at=bound[0],
        also=((launch, "started here"), (tasks[0], f"{count} tasks")),
        remedy=f"Ask for `--gpus-per-node={count}` in its place, or add `--gpu-bind=none`.",
        severity=None if _is_certain(job, bound[0], launch.scope) else Severity.WARNING,
    )


def _is_certain(job: Job, bound: Claim, scope: Scope) -> bool:
    """Whether the script itself takes the device with its local rank, and the binding leaves it one."""
    chosen = [claim for claim in job.about("device_of_local_rank", scope) if not claim.condition]
    known = any(not isinstance(claim.value, Unresolved) for claim in chosen)
    return bound.quantity == "gpus_per_task" and known and not _is_overridden(job, bound, scope)


def _is_overridden(job: Job, bound: Claim, scope: Scope) -> bool:
    """Whether srun has a number of GPUs of its own, which may override what the header binds."""
    own = [claim for claim in job.about("step_gpus", scope) if claim.scope == scope]
    return bool(own) and bound.scope != scope


def _visible(bound: Claim) -> str:
    """The GPUs that a task sees under a binding."""
    if any("closest" in text for text in texts(bound.value)):
        return "only the GPUs next to its cores, numbered from 0"
    return "one GPU, as device 0"


def _lightning_devices(job: Job, scope: Scope) -> Claim | None:
    """The number of devices, certainly more than one, that a Lightning Trainer asks for."""
    found = [claim for claim in job.requiring("processes_per_node", scope) if claim.source == "lightning"]
    known = found and not any(claim.condition for claim in found) and certainly_several(job_value(found))
    return found[0] if known else None


def _by_local_rank(job: Job, arguments: tuple[str | None, ...], scope: Scope) -> str:
    """The program that uses its local rank as device index, for a message; empty if none is known."""
    for word in arguments:
        if word is not None and word.partition("=")[0] in _BY_LOCAL_RANK:
            return f"a program with `{word.partition('=')[0]}`"
    # A job that sets local ranks uses them as device indices.
    given = job.setting("env.LOCAL_RANK", scope)
    if given and given[0].value != Known("0"):
        return f"a program that is given {quoted(given[0])}"
    chosen = [claim for claim in job.about("device_of_local_rank", scope) if not claim.condition]
    return f"{quoted(chosen[0])} ({where(chosen[0])})" if chosen else ""


#: Commands of a step that do no work: inspection of nodes and small chores.
CHORES = frozenset(
    (
        *("cat", "chmod", "cp", "curl", "date", "df", "dmesg", "docker", "du", "echo", "enroot", "env", "find"),
        *("free", "git", "head", "hostname", "ibstat", "ibv_devinfo", "id", "ifconfig", "ip", "kill", "killall"),
        *("ln", "ls", "lscpu", "mkdir", "module", "mv", "nvidia-smi", "ping", "pip", "pkill", "podman", "printenv"),
        *("printf", "rm", "rocm-smi", "rsync", "sbcast", "scontrol", "sleep", "stat", "sync", "tail", "tar"),
        *("tee", "test", "touch", "true", "ulimit", "uname", "unzip", "wget", "which", "whoami"),
    )
)


class Step(NamedTuple):
    """One srun of a batch script. `claim` is what it starts; `launch` the launch that it carries, if any."""

    job: Job
    claim: Claim
    launch: Launch | None

    @property
    def subject(self) -> str:
        """The name of the step in a report."""
        return self.claim.scope.launch

    @property
    def scope(self) -> Scope:
        """The scope of its other claims."""
        return self.claim.scope

    def about(self, quantity: str) -> Claim | None:
        """The claims about this step."""
        return next((c for c in self.job.about(quantity, self.scope) if c.scope == self.scope), None)

    def definitely(self, quantity: str) -> bool:
        """Whether a quantity is certainly true for this step."""
        claim = self.about(quantity)
        return claim is not None and claim.value == Known(True)

    def several(self, quantity: str) -> bool:
        """Whether a count is certainly more than one."""
        claim = self.about(quantity)
        found = numbers(job_value((claim,))) if claim is not None else ()
        return bool(found) and min(found) > 1


def steps(job: Job) -> Iterator[Step]:
    """The steps other than short utility commands (`CHORES`), in file order."""
    for claim in job.about("step"):
        if claim.alternatives and all(str(item) in CHORES for item in claim.alternatives):
            continue
        launch = next((launch for launch in job.launches if launch.id == claim.scope.launch), None)
        yield Step(job, claim, launch)


#: Patterns that make file names differ between array tasks or jobs.
_TASK_PATTERNS = ("%a", "%A", "%j", "%J", "%x_%a")


#: An array of one task: `0`, `3-3`.
_ONE_TASK = re.compile(r"(\d+)(?:-\1)?(?:%\d+)?")


def _runs_tasks_at_once(stated: Stated[Launch]) -> bool:
    """Whether several tasks of the array may run at a time: `%1` after its range allows one, and `0` is one."""
    arrays = texts(job_value(stated.settings[0])) or ("",)
    return not all("%1" in text or _ONE_TASK.fullmatch(text) for text in arrays)


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
    if all(map(_ONE_TASK.fullmatch, texts(arrays[0].value) or ("",))):
        yield passed(job.name)
        return
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
