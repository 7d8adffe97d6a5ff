"""The steps and array tasks of a batch script: cores and GPUs of each task, shared resources, and how failures are
noticed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import UNSEEN, Claim, Job, Known, Launch, OneOf, Scope, Unresolved
from preflight.model.job.claim import distinct, job_value
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
from preflight.plugins.claim_text import counted, placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight_rules.launches import certainly_one, certainly_several
from preflight_rules.settings.tables import in_range, pinned

#: Values of --gpu-bind that give each task one GPU.
_ONE_GPU_PER_TASK = re.compile(r"(?:verbose,)?(?:single:1|per_task:1|closest)$")
#: Frameworks that use the local rank as device index.
_LOCAL_RANK_FRAMEWORKS = ("--deepspeed", "--deepspeed_config", "--local_rank", "--local-rank")


@rule(
    "SLU005",
    "cores-not-inherited-by-step",
    severity=Severity.INFO,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    applies_to="Slurm 22.05 to 23.02",
    otherwise="no batch script requests cores per task and runs a step",
)
def cores_not_inherited_by_step(job: Job) -> Iterator[Verdict]:
    """The cores requested in the header of a batch script do not reach srun.

    What it checks: If `#SBATCH --cpus-per-task` is more than 1, every step that does some work has `-c`,
    `--cpus-per-gpu` or `--cpu-bind`, or SRUN_CPUS_PER_TASK in its environment.

    Why it matters: In Slurm 22.05 and 23.02, srun does not inherit the value from sbatch. Each task is then bound to
    one core, and loader workers, NCCL's threads and the launcher's ranks share it: training is many times slower,
    without a warning.

    Example: `#SBATCH --cpus-per-task=10` and `srun ./train`.

    Fix: `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before the first srun, or `srun -c $SLURM_CPUS_PER_TASK`. Both
    are harmless in other versions.

    Known limits: Slurm before 22.05 and since 23.11 passes the cores on; the files do not show the cluster's version,
    so this is informational. Some sites set the variable for everyone.
    """
    unset_steps: list[tuple[Step, Claim]] = []
    for step in steps(job):
        requested = [c for c in job.setting("cpus_per_task", step.scope) if c.source == "slurm"]
        if not requested:
            continue
        step_cores = step.about("step_cpus_per_task")
        undecided_verdict = undecided(
            step.subject, (*requested, *((step_cores,) if step_cores is not None else ())), step.launch
        )
        if undecided_verdict is not None:
            yield undecided_verdict
        elif step_cores is not None or not certainly_several(job_value(requested)):
            yield passed(step.subject)
        else:
            unset_steps.append((step, requested[0]))
    if unset_steps:
        # Several tasks on a node are bound to one core each; a single task may keep all cores of its node.
        unset_steps.sort(key=lambda entry: not entry[0].is_several("step_tasks_per_node"))
        step, requested_cores = unset_steps[0]
        yield failed(
            job.name,
            f"{placed(requested_cores)} requests cores per task, but {quoted(step.claim)} does not repeat it: srun "
            "of Slurm 22.05 and 23.02 does not inherit the number, and gives each task one core.",
            at=step.claim,
            also=((requested_cores, "requested here"), *((other.claim, "the same") for other, _ in unset_steps[1:8])),
            remedy="Put `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before srun, or pass "
            "`--cpus-per-task=$SLURM_CPUS_PER_TASK` to srun.",
            # Unsafe: a site may set the variable to something else.
            fix=make_fix(
                "pass the number of cores to srun",
                *(
                    replace_text(each.claim, "srun", "srun --cpus-per-task=$SLURM_CPUS_PER_TASK")
                    for each, _ in unset_steps
                ),
                safe=False,
            ),
        )


def _binding_claims(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """Return the claims that give each task one GPU; empty if there are none, or if `--gpu-bind` overrides them."""
    bindings = job.setting("gpu_bind", scope)
    exported_bindings = job.setting("env.SLURM_GPU_BIND", scope)
    if exported_bindings and not any(claim.scope.launch for claim in bindings):
        # srun's own option wins over the variable, and the variable over the header.
        bindings = exported_bindings
    if bindings:
        values = texts(job_value(bindings))
        is_unresolved = any(isinstance(claim.value, Unresolved) for claim in bindings)
        return bindings if is_unresolved or (values and all(_ONE_GPU_PER_TASK.match(text) for text in values)) else ()
    per_task = job.setting("gpus_per_task", scope)
    return per_task if per_task and (certainly_one(job_value(per_task)) or not numbers(job_value(per_task))) else ()


@rule(
    "SLU006",
    "task-sees-one-gpu-but-indexes-local-rank",
    severity=Severity.ERROR,
    otherwise="srun gives no task its own GPU",
    each=launches_with(_binding_claims, "tasks_per_node", where=lambda stated: stated.launch.launcher == "srun"),
)
def task_sees_one_gpu_but_indexes_local_rank(question: LaunchQuestion) -> Verdict | None:
    """Each task sees one GPU, but its framework uses the local rank as GPU index.

    What it checks: If srun itself starts several ranks on a node, `--gpus-per-task=1` (or `--gpu-bind=single:1`,
    `per_task:1`) is not combined with a program that selects its device by local rank (DeepSpeed, or any program that
    is given LOCAL_RANK), nor with a Lightning Trainer that requests several devices, which is an error.

    Why it matters: Every task sees its own GPU as device 0. Local rank 1 requests device 1 and stops with "invalid
    device ordinal", and Lightning refuses devices that the task does not see. Ranks that do start cannot transfer data
    directly between the GPUs of a node.

    Example: `#SBATCH --ntasks-per-node=8 --gpus-per-task=1` and `srun python train.py --deepspeed ds.json`.

    Fix: `#SBATCH --gpus-per-node=8` instead of `--gpus-per-task=1`, or `--gpu-bind=none` in addition.

    Known limits: A script that uses device 0 if only one is visible is correct; nothing is reported for a program that
    is not known to use its local rank. The finding is a warning if the script counts its devices or handles the
    failure, or if srun has its own number of GPUs.
    """
    bindings, tasks = question.of
    job, launch = question.of.job, question.of.launch
    if not certainly_several(job_value(tasks)):
        return None
    devices = _lightning_devices(job, launch.scope)
    if devices is not None:
        return failed(
            question.subject,
            f"{quoted(bindings[0])} shows each task one GPU, but {placed(devices)} makes Lightning request "
            f"{numbers(devices.value)[0]} GPUs in each: Lightning stops because the task sees only GPU 0.",
            at=bindings[0],
            also=((devices, "requested here"), (launch, "started here")),
            remedy=f"Use `--gpus-per-node={numbers(devices.value)[0]}` instead, or add `--gpu-bind=none`.",
            severity=Severity.WARNING if _is_overridden(job, bindings[0], launch.scope) else None,
        )
    program = _local_rank_user(job, launch.arguments, launch.scope)
    if not program:
        return unknown(launch.id, "whether the program uses its local rank as GPU index is unknown", at=bindings[0])
    count = numbers(job_value(tasks))[0]
    return failed(
        question.subject,
        f"{quoted(bindings[0])} gives each of the {count} tasks of a node {_visible_gpus(bindings[0])}, but {program}"
        f" uses its local rank as device index, 0 to {count - 1}.",
        at=bindings[0],
        also=((launch, "started here"), (tasks[0], f"{count} tasks")),
        remedy=f"Use `--gpus-per-node={count}` instead, or add `--gpu-bind=none`.",
        severity=None if _is_certain(job, bindings[0], launch.scope) else Severity.WARNING,
    )


def _is_certain(job: Job, binding: Claim, scope: Scope) -> bool:
    """Return whether the script itself uses its local rank as device index, and the binding leaves one device."""
    claims = [claim for claim in job.about("device_of_local_rank", scope) if not claim.condition]
    is_known = any(not isinstance(claim.value, Unresolved) for claim in claims)
    return binding.quantity == "gpus_per_task" and is_known and not _is_overridden(job, binding, scope)


def _is_overridden(job: Job, binding: Claim, scope: Scope) -> bool:
    """Return whether srun has its own number of GPUs, which may override the header's binding."""
    step_gpu_claims = [claim for claim in job.about("step_gpus", scope) if claim.scope == scope]
    return bool(step_gpu_claims) and binding.scope != scope


def _visible_gpus(binding: Claim) -> str:
    if any("closest" in text for text in texts(binding.value)):
        return "only the GPUs next to its cores, numbered from 0"
    return "one GPU, as device 0"


def _lightning_devices(job: Job, scope: Scope) -> Claim | None:
    """Return the claim about a number of devices, certainly more than one, that a Lightning Trainer requests."""
    claims = [claim for claim in job.requirement_claims("processes_per_node", scope) if claim.source == "lightning"]
    is_certain = claims and not any(claim.condition for claim in claims) and certainly_several(job_value(claims))
    return claims[0] if is_certain else None


#: The first release of Lightning that compares its devices with `--ntasks-per-node`
#: (SLURMEnvironment.validate_settings).
_LIGHTNING_COMPARES = "2.1"
#: Strategies of Lightning with a process for each device, all started by Slurm.
_STARTS_TASKS = re.compile(r"auto|ddp|ddp_find\w+|fsdp|deepspeed\w*")
_OF_TRAINER = "setting.lightning_trainer."


def all_devices_of_lightning(job: Job, scope: Scope) -> Claim | None:
    """Return the claim that every Lightning Trainer takes all GPUs that its task sees, with one Slurm task for each;
    None if that is not certain.
    """
    devices = job.about(f"{_OF_TRAINER}devices", scope)
    is_sure = all(not claim.condition and claim.alternatives in (("auto",), (-1,), ("-1",)) for claim in devices)
    accelerators = job.about(f"{_OF_TRAINER}accelerator", scope)
    on_gpus = accelerators and all(claim.alternatives in (("gpu",), ("cuda",), ("auto",)) for claim in accelerators)
    strategies = job.about(f"{_OF_TRAINER}strategy", scope)
    is_by_tasks = all(
        claim.alternatives and all(_STARTS_TASKS.fullmatch(str(each)) for each in claim.alternatives)
        for claim in strategies
    )
    # Another environment may be among the plugins; a binding or a variable leaves a task fewer GPUs.
    has_plugins = job.about(f"{_OF_TRAINER}plugins", scope)
    is_narrowed = any(job.setting(each, scope) for each in ("gpu_bind", "gpus_per_task", "env.CUDA_VISIBLE_DEVICES"))
    if not devices or not is_sure or not on_gpus or not is_by_tasks or has_plugins or is_narrowed:
        return None
    release = pinned(job, "lightning")
    return devices[0] if not release or in_range(release, _LIGHTNING_COMPARES, "") else None


def _local_rank_user(job: Job, arguments: tuple[str | None, ...], scope: Scope) -> str:
    """Return the program that uses its local rank as device index, for display; empty if none is known."""
    for word in arguments:
        if word is not None and word.partition("=")[0] in _LOCAL_RANK_FRAMEWORKS:
            return f"a program with `{word.partition('=')[0]}`"
    # A job that sets local ranks uses them as device indices.
    local_ranks = job.setting("env.LOCAL_RANK", scope)
    if local_ranks and local_ranks[0].value != Known("0"):
        return f"a program that is given {quoted(local_ranks[0])}"
    device_claims = [claim for claim in job.about("device_of_local_rank", scope) if not claim.condition]
    return f"{quoted(device_claims[0])} ({where(device_claims[0])})" if device_claims else ""


#: Short utility commands of a step: they inspect nodes or manage files, but do not train.
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
    """One srun of a batch script. `claim` is its command; `launch` is the launch in it, if any."""

    job: Job
    claim: Claim
    launch: Launch | None

    @property
    def subject(self) -> str:
        """The name of the step in a report."""
        return self.claim.scope.launch

    @property
    def scope(self) -> Scope:
        """The scope of the step's other claims."""
        return self.claim.scope

    def about(self, quantity: str) -> Claim | None:
        """Return the claim about a quantity of this step; None if there is no such claim."""
        return next((c for c in self.job.about(quantity, self.scope) if c.scope == self.scope), None)

    def is_true(self, quantity: str) -> bool:
        """Return whether a quantity is certainly true for this step."""
        claim = self.about(quantity)
        return claim is not None and claim.value == Known(True)

    def is_several(self, quantity: str) -> bool:
        """Return whether a count is certainly more than one."""
        claim = self.about(quantity)
        counts = numbers(job_value((claim,))) if claim is not None else ()
        return bool(counts) and min(counts) > 1


def steps(job: Job) -> Iterator[Step]:
    """Return the steps other than short utility commands (`CHORES`), in file order."""
    return (step for step in _all_steps(job) if not _is_chore(step))


def chores(job: Job) -> Iterator[Step]:
    """Return the steps that are short utility commands, in file order."""
    return filter(_is_chore, _all_steps(job))


def _all_steps(job: Job) -> Iterator[Step]:
    launches = {launch.id: launch for launch in job.launches}
    return (Step(job, claim, launches.get(claim.scope.launch)) for claim in job.about("step"))


def _is_chore(step: Step) -> bool:
    commands = step.claim.alternatives
    return bool(commands) and all(str(item) in CHORES for item in commands)


#: Patterns that make file names differ between array tasks or jobs.
_TASK_PATTERNS = ("%a", "%A", "%j", "%J", "%x_%a")


#: An array of one task: `0`, `3-3`.
_ONE_TASK = re.compile(r"(\d+)(?:-\1)?(?:%\d+)?")
_ONE_AT_A_TIME = re.compile(r"%1$")


def _runs_tasks_at_once(stated: Stated[Launch]) -> bool:
    """Return whether several array tasks may run at once; `%1` after the range, or an array of `0`, allows one."""
    array_ranges = texts(job_value(stated.settings[0])) or ("",)
    return not all(_ONE_AT_A_TIME.search(text) or _ONE_TASK.fullmatch(text) for text in array_ranges)


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

    What it checks: In a job array (`--array`) no launch has a fixed port, unless two tasks cannot share a node
    (`--exclusive`, all eight GPUs).

    Why it matters: The second task on a node stops with "address already in use", or its ranks join those of the first.

    Example: `#SBATCH --array=0-7 --gres=gpu:1` and `torchrun --master_port=29500`.

    Fix: `--master_port=$((29500 + SLURM_ARRAY_TASK_ID))`, or `--standalone` on one node.

    Known limits: One task may use a whole node with fewer than eight GPUs; the files do not show the size of a node.
    """
    arrays, ports = question.of
    job, scope = question.of.job, question.of.scope
    gpus_per_node = numbers(job_value(job.setting("gpus_per_node", scope)))
    if job.setting("exclusive", scope) or (gpus_per_node and min(gpus_per_node) >= 8) or not numbers(job_value(ports)):
        return None
    return failed(
        question.subject,
        f"{quoted(arrays[0])} starts this launch many times, always with port {placed(ports[0])}: two tasks on the "
        "same node collide.",
        at=ports[0],
        also=((arrays[0], "the array"),),
        remedy="Add $SLURM_ARRAY_TASK_ID to the port, or use --standalone if each task runs on one node.",
    )


@rule("SLU012", "array-tasks-share-an-output-file", severity=Severity.WARNING)
def array_tasks_share_an_output_file(job: Job) -> Iterator[Verdict]:
    """All tasks of a job array write to one file or folder of checkpoints.

    What it checks: With `--array`, the pattern of `--output` contains %a, %A or %j. Where tasks may run at once and a
    launch resumes from what it saved, its folder of checkpoints depends on the array's index.

    Why it matters: Each task that starts truncates the file, and the lines of tasks that run at the same time are
    interleaved. Tasks with one folder of checkpoints overwrite each other's, and resume from another task's.

    Example: `#SBATCH --array=0-7 --output=train.log`.

    Fix: `--output=train_%A_%a.log`; `--ckpt-dir=ckpt/$SLURM_ARRAY_TASK_ID`.

    Known limits: With `--open-mode=append` lines are only interleaved, not lost, and the finding is informational. A
    folder is not judged if the program or another argument may put the index into the path.
    """
    arrays, outputs = job.about("job_array"), job.about("output_file")
    folder_verdicts = [verdict for launch in job.launches if (verdict := _shared_folder_verdict(job, launch))]
    yield from folder_verdicts
    if not arrays or not outputs:
        if not folder_verdicts:
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


#: Options for the folder that checkpoints are written to, those that resume from it, and those that name the run.
_FOLDER = re.compile(r"--(?:output|out|save|ckpt|checkpoints?|work|run|result|exp)s?(?:[-_](?:dir|path|folder))?")
_RESUMES = re.compile(r"--(?:auto[-_]?)?(?:resume|continue)(?!.*(?:no|false)$)[\w-]*", re.IGNORECASE)
_NAMES_RUN = re.compile(r"--\w*(?:name|tag|suffix|run|id|index|task|trial|group|exp)[\w-]*")


def _shared_folder_verdict(job: Job, launch: Launch) -> Verdict | None:
    """Return the verdict on the folder that a launch of a job array saves to and resumes from; None if it has none."""
    arrays, arguments = job.setting("job_array", launch.scope), launch.arguments
    if not arrays or not any(text and _RESUMES.match(text) for text in arguments):
        return None
    words = [(text or "").partition("=") for text in arguments]
    folder_options = [(at, name, value) for at, (name, _, value) in enumerate(words) if _FOLDER.fullmatch(name)]
    if not folder_options:
        return None
    at, name, value = folder_options[0]
    path = value or (arguments[at + 1] if at + 1 < len(arguments) else None)
    ranges = texts(job_value(arrays))
    if not path or not ranges:
        return unknown(launch.id, f"what {name} is in each task of the array is unknown", at=launch)
    if all(_ONE_AT_A_TIME.search(text) or _ONE_TASK.fullmatch(text) for text in ranges):
        return passed(launch.id)
    reads_index = any(
        "ARRAY" in text and claim.span.path != launch.span.path
        for claim in job.about("variable_read", launch.scope)
        for text in texts(claim.value)
    )
    is_named = any(
        _NAMES_RUN.fullmatch(option) and (text or (arguments[i + 1] if i + 1 < len(arguments) else "")) is None
        for i, (option, _, text) in enumerate(words)
        if i != at
    )
    if reads_index or is_named or path.startswith("-"):
        return unknown(launch.id, "the program may put the index of the task into the path", at=launch)
    return failed(
        launch.id,
        f"`{name} {path}` is the same in all tasks of {placed(arrays[0])}, which run at once: they overwrite each"
        " other's checkpoints and resume from them.",
        at=launch,
        also=((arrays[0], "the array"),),
        remedy="Put $SLURM_ARRAY_TASK_ID into the path.",
        confidence=Confidence.MEDIUM,
    )


@rule(
    "LOG001",
    "log-folder-made-too-late",
    severity=Severity.WARNING,
    otherwise="no header writes its output into a folder",
)
def log_folder_made_too_late(job: Job) -> Iterator[Verdict]:
    """The script itself creates the folder for its output file, which is too late.

    What it checks: A script with `--output=logs/%j.out` does not itself run `mkdir logs`.

    Why it matters: Slurm opens the file before it runs the script, and does not create folders. The first job on a
    fresh checkout ends immediately, without a log that shows the reason.

    Example: `#SBATCH --output=logs/%j.out` followed by `mkdir -p logs`.

    Fix: Create the folder before calling sbatch, or keep it in the repository.

    Known limits: Whether the folder already exists is not checked; if it does, the job is fine.
    """
    outputs, created = job.about("output_file"), job.about("directory_made")
    for claim in outputs:
        folders = {posixpath.dirname(text).removeprefix("./") for text in texts(claim.value)} - {""}
        if not folders:
            if claim.alternatives:
                continue
            yield unknown(job.name, f"the folder of {quoted(claim)} is unknown", at=claim)
            continue
        created_by_script = [c for c in created if c.span.path == claim.span.path]
        late_claims = [c for c in created_by_script if {text.removeprefix("./") for text in texts(c.value)} & folders]
        if late_claims:
            yield failed(
                job.name,
                f"{quoted(claim)} is opened before the script runs {quoted(late_claims[0])} "
                f"({where(late_claims[0])}): without the folder, the job ends immediately and leaves no log.",
                at=claim,
                also=((late_claims[0], "too late"),),
                remedy="Create the folder before calling sbatch.",
            )
        else:
            yield passed(job.name)


@rule("FLT006", "requeued-job-empties-its-log", severity=Severity.INFO, profile="pedantic")
def requeued_job_empties_its_log(job: Job) -> Iterator[Verdict]:
    """A requeued job overwrites the log of its first run.

    What it checks: A script with `--requeue` or `scontrol requeue` also has `--open-mode=append`.

    Why it matters: A requeued job keeps its id, so its output file keeps its name, and by default Slurm empties the
    file: the log of the failure is gone.

    Example: `#SBATCH --requeue --output=%j.out`.

    Fix: `#SBATCH --open-mode=append`.

    Known limits: A site may have set JobFileAppend.
    """
    requeues = [c for c in (*job.about("requeue"), *job.about("requeues_itself")) if True in c.alternatives]
    if not requeues:
        yield not_applicable(job.name, "no option requeues the job")
        return
    modes = job.about("output_opened")
    verdict = undecided(job.name, modes)
    if verdict is None and not any("append" in texts(claim.value) for claim in modes):
        verdict = failed(
            job.name,
            f"{quoted(requeues[0])} reruns the job under the same id, which truncates its output file.",
            at=requeues[0],
            remedy="Add `#SBATCH --open-mode=append`.",
        )
    yield verdict or passed(job.name)


# Failures of a step or task: exit codes, remaining tasks, signals before the time limit.


#: Modules whose handler saves and requeues on the first task alone (submitit/core/job_environment.py).
_FIRST_TASK_ONLY = ("submitit.core._submit",)
#: From this number of nodes on an unnoticed failure is a warning, because it wastes so many node-hours.
_MANY_NODES = 16
_SIGNAL_NAMES = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}


@rule("FLT001", "background-step-failure-lost", severity=Severity.WARNING)
def background_step_failure_lost(job: Job) -> Iterator[Verdict]:
    """A script runs steps in the background and ignores their exit codes.

    What it checks: A batch script that starts several steps with `&` uses `wait -n`, `wait PID`, or a trap on EXIT, ERR
    or CHLD, not only a plain `wait`.

    Why it matters: When one step crashes, the others wait for it and occupy all nodes until the time limit. A plain
    `wait` then returns 0, so the job counts as completed.

    Example: `srun -N1 -n1 infer.sh &`, `srun -N1 -n1 train.sh &`, `wait`.

    Fix: `wait -n || { kill $(jobs -p); exit 1; }` once for each step, or keep each PID and `wait` for it.

    Known limits: Steps that watch each other, or a program that ends the job itself with scancel, are not seen. With a
    single background step the finding is informational.
    """
    waits = job.about("plain_wait")
    background = [step for step in steps(job) if step.is_true("step_background")]
    if not waits or not background:
        yield not_applicable(job.name, "no batch script waits for steps in the background")
        return
    for wait in waits:
        steps_here = [step for step in background if step.claim.span.path == wait.span.path]
        if not steps_here:
            continue
        if any(claim.span.path == wait.span.path for claim in job.about("failure_watch")):
            yield passed(job.name)
            continue
        if undecided_verdict := undecided(job.name, (wait,)):
            yield undecided_verdict
            continue
        is_several = len(steps_here) > 1 or any(step.is_true("step_repeated") for step in steps_here)
        awaited_text = (
            "each iteration of the loop" if len(steps_here) == 1 and is_several else counted(len(steps_here), "step")
        )
        yield failed(
            job.name,
            f"`wait` ({where(wait)}) waits for {awaited_text} in the background and ignores their exit codes: when "
            "one fails, the others keep the nodes occupied, and the job counts as completed.",
            at=wait,
            also=tuple((step.claim, "runs in the background") for step in steps_here[:8]),
            remedy="Write `wait -n || { kill $(jobs -p); exit 1; }` once for each step, or `wait` for each PID and"
            " exit with its status.",
            severity=None if is_several else Severity.INFO,
        )
        return


@rule("FLT002", "step-failure-hidden-by-pipe", severity=Severity.WARNING, otherwise="no step writes to a pipe")
def step_failure_hidden_by_pipe(job: Job) -> Iterator[Verdict]:
    """The exit code of a step over several nodes is lost in a pipe.

    What it checks: The output of an srun goes through a pipe (`| tee log`) without `set -o pipefail`, and no option of
    srun ends the step when a task fails.

    Why it matters: The launchers on the other nodes wait for the one that crashed, often until the time limit, while
    all nodes are occupied. The shell uses the status of `tee`, which is 0: the job counts as completed, and dependent
    jobs start.

    Example: `srun bash -c "$LAUNCHER $CMD" 2>&1 | tee -a log` on 40 nodes.

    Fix: `srun --kill-on-bad-exit=1 --wait=60 ...`, and `set -o pipefail` at the top of the script.

    Known limits: Sites can end steps by configuration (KillOnBadExit). If only one of the two is missing, or the step
    runs on fewer than 16 nodes or on an unknown number of nodes, the finding is informational.
    """
    for step in steps(job):
        pipe, kill_option = step.about("step_pipe"), step.about("step_kills_on_failure")
        if pipe is None:
            continue
        if not step.is_true("step_pipe_hides_failure"):
            yield passed(step.subject)
            continue
        if undecided_verdict := undecided(step.subject, (kill_option,) if kill_option is not None else (), step.launch):
            yield undecided_verdict
            continue
        kills_on_failure = kill_option is not None and kill_option.value == Known(True)
        nodes = step.about("step_nodes")
        node_counts = numbers(nodes.value) if nodes is not None else ()
        on_many_nodes = bool(node_counts) and min(node_counts) >= _MANY_NODES
        also = ((nodes, "nodes held"),) if nodes is not None else ()
        reader = job_value((pipe,))
        pipe_text = f"`| {reader.value}`" if isinstance(reader, Known) else "the pipe"
        cause = (
            ", and no --kill-on-bad-exit ends the other tasks when one fails"
            if not kills_on_failure
            else ", although srun ends it when a task fails"
        )
        yield failed(
            step.subject,
            f"{quoted(step.claim)}: the script sees the exit status of {pipe_text} instead of srun's{cause}.",
            at=step.claim,
            also=also,
            remedy="Put `set -o pipefail` at the top of the script"
            + (" and pass `--kill-on-bad-exit=1` to srun." if not kills_on_failure else "."),
            severity=None if on_many_nodes and not kills_on_failure else Severity.INFO,
        )


@rule(
    "FLT003",
    "failed-task-leaves-others-running",
    severity=Severity.INFO,
    profile="pedantic",
    otherwise="no step has several tasks",
)
def failed_task_leaves_others_running(job: Job) -> Iterator[Verdict]:
    """A step of several tasks keeps running when one of them fails.

    What it checks: A step with more than one task, or over more than one node, has `--kill-on-bad-exit` or
    SLURM_KILL_BAD_EXIT.

    Why it matters: The remaining ranks hang in their next collective and occupy all nodes until it times out.

    Example: `srun --nodes=16 python train.py`.

    Fix: `srun --kill-on-bad-exit=1`.

    Known limits: Advice only: many sites set KillOnBadExit for everyone, and most public scripts omit the option.
    """
    for step in steps(job):
        if not (step.is_several("step_nodes") or step.is_several("step_tasks")) or step.about("step_pipe") is not None:
            continue
        kill_option = step.about("step_kills_on_failure")
        verdict = undecided(step.subject, (kill_option,) if kill_option is not None else (), step.launch)
        if verdict is None and kill_option is not None and kill_option.value == Known(False):
            verdict = failed(
                step.subject,
                f"{quoted(step.claim)} starts several tasks and has no --kill-on-bad-exit: when one fails, the"
                " others wait for it.",
                at=step.claim,
                remedy="Pass `--kill-on-bad-exit=1` to srun.",
            )
        yield verdict or passed(step.subject)


class _SignalRequest(NamedTuple):
    """A parsed `--signal`: whether the batch shell gets it, the signal, and the seconds before the time limit."""

    shell: bool
    signal: str
    seconds: int


def _parse_signal(claim: Claim) -> _SignalRequest | None:
    text = str(claim.alternatives[0]) if len(claim.alternatives) == 1 else ""
    match = re.fullmatch(r"(?:([BR]{1,2}):)?(?:SIG)?([A-Za-z]+\d?|\d+)(?:@(\d{1,9}))?", text.strip())
    if match is None:
        return None
    signal = match[2].upper()
    # The default of sbatch is 60 seconds.
    return _SignalRequest("B" in (match[1] or ""), _SIGNAL_NAMES.get(signal, signal), int(match[3] or 60))


@rule(
    "FLT004",
    "hand-off-signal-not-handled",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no job requests a signal before the time limit",
)
def hand_off_signal_not_handled(job: Job) -> Iterator[Verdict]:
    """No handler gets the signal that is sent before the time limit.

    What it checks: `--signal=B:SIG` reaches the batch script: the script has a trap for SIG, and no foreground srun
    blocks it, because bash waits for that before it runs a trap. `--signal=SIG` without `B:` reaches only the steps: a
    trap in the script never runs.

    Why it matters: Nothing is saved before the time limit. The signal ends a shell without a trap, and so the job,
    earlier than necessary.

    Example: `#SBATCH --signal=USR1@90` and `trap 'scontrol requeue $SLURM_JOB_ID' USR1`.

    Fix: `#SBATCH --signal=B:USR1@90`, `trap ... USR1`, and `srun ... &` with `wait` after it. Or remove `B:` and handle
    the signal in the training program.

    Known limits: Whether a program handles a signal that is sent to its step is not checked.
    """
    for claim in job.about("hand_off_signal"):
        if isinstance(claim.value, (Unresolved, OneOf)) or (requested := _parse_signal(claim)) is None:
            yield unknown(job.name, f"the signal and receiver of {quoted(claim)} are unknown", at=claim)
            continue
        traps = [c for c in job.about("trapped_signal") if c.span.path == claim.span.path]
        handlers = [c for c in traps if requested.signal in texts(c.value)]
        script_steps = [step for step in steps(job) if step.claim.span.path == claim.span.path]
        if not requested.shell:
            if not handlers:
                yield unknown(
                    job.name, f"whether the programs of the job handle {requested.signal} is unknown", at=claim
                )
                continue
            yield failed(
                job.name,
                f"{quoted(claim)} signals only the steps, so {quoted(handlers[0])} ({where(handlers[0])}) never runs.",
                at=claim,
                also=((handlers[0], "waits for the signal"),),
                remedy=f"Write `--signal=B:{requested.signal}@{requested.seconds}`, so that the batch script gets the "
                f"signal.",
                fix=make_fix(
                    "send the signal to the batch script",
                    replace_text(claim, f"--signal={requested.signal}", f"--signal=B:{requested.signal}"),
                    safe=False,
                ),
            )
        elif not handlers and _sources_unreadable_file(job, claim.span.path):
            yield unknown(job.name, "a file that the script sources may set the trap", at=claim)
        elif not handlers:
            yield failed(
                job.name,
                f"{quoted(claim)} signals the batch script, which has no trap for {requested.signal}, so the signal "
                "ends the shell and the job.",
                at=claim,
                remedy=f"Add a `trap '...' {requested.signal}`, or remove `B:` to signal the training program.",
            )
        elif script_steps and not any(step.is_true("step_background") for step in script_steps):
            yield failed(
                job.name,
                f"bash runs {quoted(handlers[0])} only after the foreground srun has returned, but {quoted(claim)}"
                " is sent earlier.",
                at=handlers[0],
                also=((claim, "the signal"), (script_steps[-1].claim, "in the foreground")),
                remedy="Start it with `srun ... &` and put `wait` after it: a trap interrupts a wait.",
            )
        else:
            yield passed(job.name)


def _sources_unreadable_file(job: Job, path: str) -> bool:
    return any(
        note.kind in UNSEEN and note.span.path == path and note.span.snippet.lstrip().startswith(("source ", ". "))
        for note in job.notes
    )


@rule(
    "FLT005",
    "first-task-alone-hands-off",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no step saves its work when it gets a signal",
)
def first_task_alone_hands_off(job: Job) -> Iterator[Verdict]:
    """At the time limit one task saves and requeues the job, while the other tasks fail.

    What it checks: If submitit starts more than one task, the job does not request a signal before its time limit or
    preemption.

    Why it matters: Every task gets the signal; submitit's handler saves and requeues only in the task with global rank
    0 and lets the others continue. These then fail in a collective without rank 0, and their own state (sharded
    optimizer states) is lost. The time until the limit must be enough for the checkpoint.

    Example: `#SBATCH --ntasks-per-node=4 --signal=USR2@120 --time=1440` with `srun python -m submitit.core._submit
    dir`.

    Fix: Write checkpoints at intervals well below the time limit, independent of the signal; give the signal more time
    than one checkpoint takes; make `checkpoint()` resume from the last complete one.

    Known limits: This is fine for models that rank 0 holds completely and saves quickly, which launch lines do not
    show.
    """
    for step in steps(job):
        module = step.about("step_module")
        signals = job.setting("hand_off_signal", step.scope)
        if module is None or not signals or not set(texts(module.value)) & set(_FIRST_TASK_ONLY):
            continue
        tasks = step.about("step_tasks")
        undecided_verdict = undecided(step.subject, (*signals, *((tasks,) if tasks is not None else ())), step.launch)
        requested = _parse_signal(signals[0])
        if undecided_verdict is not None or requested is None:
            yield undecided_verdict or unknown(step.subject, "the signal is unknown", at=signals[0])
        elif tasks is None or not step.is_several("step_tasks"):
            yield passed(step.subject)
        else:
            limits = job.setting("time_limit_s", step.scope)
            count = numbers(job_value((tasks,)))[0]
            limits_s = numbers(job_value(limits)) if limits else ()
            limit_text = f" of {_duration(limits_s[0])}" if limits_s else ""
            yield failed(
                step.subject,
                f"{quoted(signals[0])} comes {requested.seconds} s before the time limit{limit_text}, but submitit "
                f"saves and requeues only in task 0: the other {count - 1} of at least {count} tasks lose their "
                "state.",
                at=signals[0],
                also=(
                    *((c, "the time limit") for c in limits[:1]),
                    (tasks, f"{count} tasks"),
                    (step.claim, "handles the signal"),
                ),
                remedy="Write checkpoints at intervals independent of the signal, resume from the last complete "
                "one, and request the signal early enough for one checkpoint.",
            )


def _duration(seconds: int) -> str:
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"


@rule("FLT022", "script-ends-before-its-command", severity=Severity.ERROR, otherwise="no batch script starts a step")
def script_ends_before_its_command(job: Job) -> Iterator[Verdict]:
    """A batch script starts its last command in the background and ends.

    What it checks: In a script with `#SBATCH` directives, the last command with `&` is followed by `wait` or another
    command that takes time.

    Why it matters: Slurm ends the job when its script ends, and kills every step that is still running: training is
    over after a second, and the job counts as completed.

    Example: `srun torchrun ... train.py &` as the last line.

    Fix: Remove the `&`, or write `wait` at the end.

    Known limits: A command after the last background command is judged by its name; a function or another script may
    return immediately.
    """
    unawaited = distinct(job.about("left_behind"))
    for path in sorted({step.claim.span.path for step in steps(job)} - {command.span.path for command in unawaited}):
        yield passed(path)
    for command in unawaited:
        if undecided_verdict := undecided(command.span.path, (command,)):
            yield undecided_verdict
            continue
        yield failed(
            command.span.path,
            f"{quoted(command)} runs in the background, but the script ends without waiting for it, and Slurm then "
            "kills it.",
            at=command,
            remedy="Remove the `&`, or write `wait` at the end of the script.",
        )
