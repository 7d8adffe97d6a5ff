"""Failures of a step or task: exit codes, remaining tasks, signals before the time limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import UNSEEN, Claim, Job, Known, OneOf, Unresolved
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
from preflight.plugins.claim_text import counted, quoted, where
from preflight_rules.schedulers.slurm_steps import steps

#: Modules whose handler saves and requeues on the first task alone (submitit/core/job_environment.py).
_FIRST_TASK_ONLY = ("submitit.core._submit",)
#: From this number of nodes on an unnoticed failure is a warning, because it wastes so many node-hours.
_MANY_NODES = 16
_NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}


@rule("FLT001", "background-step-failure-lost", severity=Severity.WARNING)
def background_step_failure_lost(job: Job) -> Iterator[Verdict]:
    """A script runs steps in the background and ignores their exit codes.

    What it checks: A batch script that starts several steps with `&` uses `wait -n`, `wait PID`, or a trap on EXIT, ERR
    or CHLD, not only a plain `wait`.

    Why it matters: When one step crashes, the others wait for it and hold all nodes until the time limit. A plain
    `wait` then returns 0, so the job counts as completed.

    Example: `srun -N1 -n1 infer.sh &`, `srun -N1 -n1 train.sh &`, `wait`.

    Fix: `wait -n || { kill $(jobs -p); exit 1; }` once for each step, or keep each PID and `wait` for it.

    Known limits: Steps that watch each other, or a program that ends the job itself with scancel, are not seen. With a
    single background step the finding is informational.
    """
    waits = job.about("plain_wait")
    background = [step for step in steps(job) if step.definitely("step_background")]
    if not waits or not background:
        yield not_applicable(job.name, "no batch script waits for steps in the background")
        return
    for wait in waits:
        own = [step for step in background if step.claim.span.path == wait.span.path]
        if not own:
            continue
        if any(claim.span.path == wait.span.path for claim in job.about("failure_watch")):
            yield passed(job.name)
            continue
        if undecided_verdict := undecided(job.name, (wait,)):
            yield undecided_verdict
            continue
        several = len(own) > 1 or any(step.definitely("step_repeated") for step in own)
        parts = "each iteration of the loop" if len(own) == 1 and several else counted(len(own), "step")
        yield failed(
            job.name,
            f"`wait` ({where(wait)}) waits for {parts} in the background and ignores their exit codes: when"
            " one fails, the others keep the nodes, and the job counts as completed.",
            at=wait,
            also=tuple((step.claim, "runs in the background") for step in own[:8]),
            remedy="Write `wait -n || { kill $(jobs -p); exit 1; }` once for each of them, or `wait` for each PID and"
            " exit with its status.",
            severity=None if several else Severity.INFO,
        )
        return


@rule("FLT002", "step-failure-hidden-by-pipe", severity=Severity.WARNING, otherwise="no step writes into a pipe")
def step_failure_hidden_by_pipe(job: Job) -> Iterator[Verdict]:
    """The exit code of a step over several nodes is lost in a pipe.

    What it checks: The output of an srun goes through a pipe (`| tee log`) without `set -o pipefail`, and no option of
    srun ends the step when a task fails.

    Why it matters: The launchers on the other nodes wait for the one that crashed, often until the time limit, while
    all nodes are held. The shell takes the status of `tee`, which is 0: the job counts as completed, and dependent jobs
    start.

    Example: `srun bash -c "$LAUNCHER $CMD" 2>&1 | tee -a log` on 40 nodes.

    Fix: `srun --kill-on-bad-exit=1 --wait=60 ...`, and `set -o pipefail` at the top of the script.

    Known limits: Sites can end steps by configuration (KillOnBadExit). Where only one of the two is missing, or the
    step runs on fewer than 16 nodes or on an unknown number of nodes, the finding is informational.
    """
    for step in steps(job):
        pipe, kills = step.about("step_pipe"), step.about("step_kills_on_failure")
        if pipe is None:
            continue
        if not step.definitely("step_pipe_hides_failure"):
            yield passed(step.subject)
            continue
        if undecided_verdict := undecided(step.subject, (kills,) if kills is not None else (), step.launch):
            yield undecided_verdict
            continue
        ended = kills is not None and kills.value == Known(True)
        nodes = step.about("step_nodes")
        found = numbers(nodes.value) if nodes is not None else ()
        several = bool(found) and min(found) >= _MANY_NODES
        also = ((nodes, "nodes held"),) if nodes is not None else ()
        reader = job_value((pipe,))
        shown = f"`| {reader.value}`" if isinstance(reader, Known) else "the pipe"
        rest = (
            ", and no --kill-on-bad-exit ends the other tasks when one fails"
            if not ended
            else ", although srun ends it when a task fails"
        )
        yield failed(
            step.subject,
            f"{quoted(step.claim)}: the script sees the exit status of {shown} instead of srun's{rest}.",
            at=step.claim,
            also=also,
            remedy="Put `set -o pipefail` at the top of the script"
            + (" and give srun `--kill-on-bad-exit=1`." if not ended else "."),
            severity=None if several and not ended else Severity.INFO,
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

    Why it matters: The remaining ranks hang in their next collective and hold all nodes until it times out.

    Example: `srun --nodes=16 python train.py`.

    Fix: `srun --kill-on-bad-exit=1`.

    Known limits: Many sites set KillOnBadExit for everyone, and most public scripts leave it out: advice only.
    """
    for step in steps(job):
        if not (step.several("step_nodes") or step.several("step_tasks")) or step.about("step_pipe") is not None:
            continue
        kills = step.about("step_kills_on_failure")
        verdict = undecided(step.subject, (kills,) if kills is not None else (), step.launch)
        if verdict is None and kills is not None and kills.value == Known(False):
            verdict = failed(
                step.subject,
                f"{quoted(step.claim)} starts several tasks and has no --kill-on-bad-exit: when one fails, the"
                " others wait for it.",
                at=step.claim,
                remedy="Give srun `--kill-on-bad-exit=1`.",
            )
        yield verdict or passed(step.subject)


class _HandOff(NamedTuple):
    """A parsed `--signal`: whether the batch shell gets it, the signal, and the seconds before the end."""

    shell: bool
    signal: str
    seconds: int


def _hand_off(claim: Claim) -> _HandOff | None:
    text = str(claim.alternatives[0]) if len(claim.alternatives) == 1 else ""
    match = re.fullmatch(r"(?:([BR]{1,2}):)?(?:SIG)?([A-Za-z]+\d?|\d+)(?:@(\d{1,9}))?", text.strip())
    if match is None:
        return None
    signal = match[2].upper()
    # The default of sbatch is 60 seconds.
    return _HandOff("B" in (match[1] or ""), _NUMBERS.get(signal, signal), int(match[3] or 60))


@rule(
    "FLT004",
    "hand-off-signal-not-handled",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no job requests a signal before the time limit",
)
def hand_off_signal_not_handled(job: Job) -> Iterator[Verdict]:
    """The signal before the time limit reaches no handler.

    What it checks: `--signal=B:SIG` reaches the batch script: it has a trap for SIG, and does not sit in a foreground
    srun, which bash waits for before it runs a trap. `--signal=SIG` without `B:` reaches the steps only: a trap in the
    script never runs.

    Why it matters: Nothing is saved before the time limit. A shell without a trap is ended by the signal, and the job
    with it, earlier than necessary.

    Example: `#SBATCH --signal=USR1@90` and `trap 'scontrol requeue $SLURM_JOB_ID' USR1`.

    Fix: `#SBATCH --signal=B:USR1@90`, `trap ... USR1`, and `srun ... &` with `wait` after it. Or leave `B:` out and
    handle the signal in the training program.

    Known limits: Whether a program handles a signal that is sent to its step is not checked.
    """
    for claim in job.about("hand_off_signal"):
        if isinstance(claim.value, (Unresolved, OneOf)) or (requested := _hand_off(claim)) is None:
            yield unknown(job.name, f"the signal and receiver of {quoted(claim)} are unknown", at=claim)
            continue
        traps = [c for c in job.about("trapped_signal") if c.span.path == claim.span.path]
        handled = [c for c in traps if requested.signal in texts(c.value)]
        own = [step for step in steps(job) if step.claim.span.path == claim.span.path]
        if not requested.shell:
            if not handled:
                yield unknown(job.name, f"whether the programs of the job handle {requested.signal}", at=claim)
                continue
            yield failed(
                job.name,
                f"{quoted(claim)} signals the steps only, so {quoted(handled[0])} ({where(handled[0])}) never runs.",
                at=claim,
                also=((handled[0], "waits for the signal"),),
                remedy=f"Write `--signal=B:{requested.signal}@{requested.seconds}`, so that the batch script gets it.",
                fix=make_fix(
                    "have the batch script get the signal",
                    replace_text(claim, f"--signal={requested.signal}", f"--signal=B:{requested.signal}"),
                    safe=False,
                ),
            )
        elif not handled and _sources_unreadable_file(job, claim.span.path):
            yield unknown(job.name, "a file that the script sources may set the trap", at=claim)
        elif not handled:
            yield failed(
                job.name,
                f"{quoted(claim)} signals the batch script, which has no trap for {requested.signal}: it ends the"
                " shell and with it the job.",
                at=claim,
                remedy=f"Add a `trap '...' {requested.signal}`, or remove `B:` to signal the training program.",
            )
        elif own and not any(step.definitely("step_background") for step in own):
            yield failed(
                job.name,
                f"bash runs {quoted(handled[0])} only after the foreground srun has returned, but {quoted(claim)}"
                " is sent earlier.",
                at=handled[0],
                also=((claim, "the signal"), (own[-1].claim, "in the foreground")),
                remedy="Start it with `srun ... &` and put `wait` after it: a trap interrupts a wait.",
            )
        else:
            yield passed(job.name)


def _sources_unreadable_file(job: Job, path: str) -> bool:
    """Whether a script sources a file that cannot be read."""
    return any(
        note.kind in UNSEEN and note.span.path == path and note.span.snippet.lstrip().startswith(("source ", ". "))
        for note in job.notes
    )


@rule(
    "FLT005",
    "first-task-alone-hands-off",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no step saves its work on a signal",
)
def first_task_alone_hands_off(job: Job) -> Iterator[Verdict]:
    """At the time limit one task saves and requeues the job, while the other tasks fail.

    What it checks: submitit starts more than one task, and the job requests a signal before its time limit or
    preemption.

    Why it matters: Every task gets the signal; submitit's handler saves and requeues only in the task with global rank
    0 and lets the others continue. They then fail in a collective whose partner is gone, and what only they held
    (sharded optimizer states) is lost. The time until the limit must be enough for the checkpoint.

    Example: `#SBATCH --ntasks-per-node=4 --signal=USR2@120 --time=1440` with `srun python -m submitit.core._submit
    dir`.

    Fix: Write checkpoints at intervals well below the time limit, independent of the signal; give the signal more time
    than one checkpoint takes; make `checkpoint()` resume from the last complete one.

    Known limits: Fine for models that rank 0 holds completely and saves quickly, which launch lines do not show.
    """
    for step in steps(job):
        module = step.about("step_module")
        signals = job.setting("hand_off_signal", step.scope)
        if module is None or not signals or not set(texts(module.value)) & set(_FIRST_TASK_ONLY):
            continue
        tasks = step.about("step_tasks")
        undecided_verdict = undecided(step.subject, (*signals, *((tasks,) if tasks is not None else ())), step.launch)
        requested = _hand_off(signals[0])
        if undecided_verdict is not None or requested is None:
            yield undecided_verdict or unknown(step.subject, "the signal is unknown", at=signals[0])
        elif tasks is None or not step.several("step_tasks"):
            yield passed(step.subject)
        else:
            limit = job.setting("time_limit_s", step.scope)
            count = numbers(job_value((tasks,)))[0]
            hours = numbers(job_value(limit)) if limit else ()
            ends = f" of {_duration(hours[0])}" if hours else ""
            yield failed(
                step.subject,
                f"{quoted(signals[0])} comes {requested.seconds} s before the time limit{ends}, and submitit saves "
                f"and requeues only in task 0: the other {count - 1} of at least {count} tasks lose their state.",
                at=signals[0],
                also=(
                    *((c, "the time limit") for c in limit[:1]),
                    (tasks, f"{count} tasks"),
                    (step.claim, "handles the signal"),
                ),
                remedy="Write checkpoints at intervals independent of the signal, resume from the last complete one,"
                " and request the signal earlier, by more than the time that one checkpoint takes.",
            )


def _duration(seconds: int) -> str:
    return f"{seconds // 3600} h" if seconds % 3600 == 0 else f"{seconds // 60} min"


@rule("FLT022", "script-ends-before-its-command", severity=Severity.ERROR, otherwise="no batch script starts a step")
def script_ends_before_its_command(job: Job) -> Iterator[Verdict]:
    """A batch script starts its last command in the background and ends.

    What it checks: After the last command with `&` of a script with `#SBATCH` directives comes a `wait`, or another
    command that takes time.

    Why it matters: Slurm ends the job when its script ends, and kills every step that still runs: training is over
    after a second, and the job counts as completed.

    Example: `srun torchrun ... train.py &` as the last line.

    Fix: Remove the `&`, or write `wait` at the end.

    Known limits: What a command after it does is judged by its name; a function or another script may be quick.
    """
    behind = distinct(job.about("left_behind"))
    for path in sorted({step.claim.span.path for step in steps(job)} - {left.span.path for left in behind}):
        yield passed(path)
    for left in behind:
        if undecided_verdict := undecided(left.span.path, (left,)):
            yield undecided_verdict
            continue
        yield failed(
            left.span.path,
            f"{quoted(left)} runs in the background, and the script ends without waiting for it: Slurm then kills it.",
            at=left,
            remedy="Remove the `&`, or write `wait` at the end of the script.",
        )
