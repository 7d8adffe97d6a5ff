"""What is saved before something goes wrong: checkpoint intervals, and nodes that may be taken away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    certainly_several,
    job_value,
    nodes_spanned,
    numbers,
    placed,
    quoted,
    subjects,
    texts,
    undecided,
)
from preflight_rules.sizes.parallel_sizes import setups

#: Partitions whose jobs others may push aside, by the names that sites give them.
_PREEMPTIBLE = lazy_pattern(
    r"(?:^|[-_.])(?:preempt(?:ible|able|ed)?|spot|scaveng(?:e|er)?|interruptible|lowprio)(?:$|[-_.])"
)
_SPOT_LABELS = (
    lazy_pattern(r"cloud\.google\.com/gke-(?:spot|preemptible)=true"),
    lazy_pattern(r"eks\.amazonaws\.com/capacityType=SPOT"),
    lazy_pattern(r"karpenter\.sh/capacity-type=spot"),
    lazy_pattern(r"kubernetes\.azure\.com/scalesetpriority=spot"),
)
#: Words of a command line that say where to go on from.
_GOES_ON = lazy_pattern(r"resum|restor|load|ckpt|checkpoint|restart|auto_|requeue|snapshot|--save", re.IGNORECASE)


@rule(
    "FLT007",
    "nothing-saved-before-the-end",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://arxiv.org/abs/2407.21783",
        "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/training.py",
    ),
)
def nothing_saved_before_the_end(job: Job) -> Iterator[Verdict]:
    """The interval between checkpoints is longer than the whole training.

    What it checks:
        Megatron-LM's `--save-interval` against `--train-iters`, gpt-neox's checkpoint_factor against train_iters.

    Why it matters:
        Whatever goes wrong before the last step costs everything. With many GPUs something does: in Meta's run of
        16,384 every three hours.

    Example:
        `--train-iters 5000 --save-interval 10000`.

    Fix:
        An interval that costs no more than you are ready to lose.

    Known limits:
        On one node, and where nobody knows how many, it is information.

    Evidence:
        The Llama 3 report, arXiv 2407.21783, section 3.3.4; Megatron-LM, training.py.
    """
    met = False
    for setup in setups(job):
        interval, steps = setup.claims("save_interval"), setup.claims("train_steps")
        if not interval or not steps:
            continue
        met = True
        open_end = undecided(setup.subject, (*interval, *steps), setup.launch)
        every, whole = setup.number("save_interval"), setup.number("train_steps")
        if open_end is not None:
            yield open_end
        elif every and whole and every > whole > 1000:
            several = setup.launch is not None and certainly_several(nodes_spanned(job, setup.launch)[0])
            yield failed(
                setup.subject,
                f"{quoted(interval[0])} is longer than the training ({placed(steps[0])}): nothing is saved before its"
                " end.",
                at=interval[0],
                also=((steps[0], "the whole training"),),
                remedy="Take an interval that costs no more than you are ready to lose.",
                severity=None if several else Severity.INFO,
            )
        else:
            yield passed(setup.subject)
    if not met:
        yield not_applicable(job.name, "no training gives both its steps and the interval of its checkpoints")


@rule(
    "FLT008",
    "preemptible-nodes-without-resuming",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://slurm.schedmd.com/preempt.html",
        "facebookincubator/submitit#1708",
        "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms",
    ),
)
def preemptible_nodes_without_resuming(job: Job) -> Iterator[Verdict]:
    """The job runs on nodes that may be taken from it, and its launch names nothing to go on from.

    What it checks:
        A partition called preempt, spot, scavenge ..., or a label of spot nodes, and a launch whose known arguments
        name no checkpoint to load or resume from.

    Why it matters:
        The job is queued again with the same command line and begins anew each time. A training that is longer than
        the usual time between two preemptions never ends.

    Example:
        `#SBATCH --partition=preempt` and `torchrun train.py --epochs 90`.

    Fix:
        Save often, and give the launch a checkpoint to resume from that is the newest there is.

    Known limits:
        A program that finds its last checkpoint by itself is right as it is.

    Evidence:
        Slurm's guide to preemption; facebookincubator/submitit#1708; GKE documentation on Spot VMs.
    """
    met = False
    for subject, scope, launch in subjects(job):
        places = _preemptible(job, scope)
        if not places or launch is None:
            continue
        met = True
        open_end = undecided(subject, places[:1], launch)
        if open_end is not None:
            yield open_end
        elif _may_resume(launch) or job.setting("hand_off_signal", scope):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(places[0])} asks for nodes that may be taken away, and the launch names no checkpoint to go"
                " on from.",
                at=places[0],
                also=((launch, "begins anew"),),
                remedy="Save often, and let the launch resume from the newest checkpoint.",
                severity=None if launch.program else Severity.INFO,
            )
    if not met:
        yield not_applicable(job.name, "nothing asks for nodes that may be taken away")


def _preemptible(job: Job, scope: Scope) -> tuple[Claim, ...]:
    found = [
        claim
        for claim in job.setting("partition", scope)
        if any(_PREEMPTIBLE.search(text.lower()) for text in texts(claim.value)) or not claim.alternatives
    ]
    found.extend(
        claim
        for claim in job.about("node_label")
        if any(pattern.fullmatch(text) for text in texts(claim.value) for pattern in _SPOT_LABELS)
    )
    return tuple(found)


def _may_resume(launch: Launch) -> bool:
    return any(word is None or _GOES_ON.search(word) for word in launch.arguments)


@rule(
    "BAT021",
    "training-length-given-twice",
    severity=Severity.ERROR,
    evidence=("https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/arguments.py",),
)
def training_length_given_twice(job: Job) -> Iterator[Verdict]:
    """Megatron-LM is told how long to train in steps and in samples.

    What it checks:
        `--train-iters` and `--train-samples` are not given together.

    Why it matters:
        Megatron-LM asserts it in every rank once all of them have started.

    Example:
        `--train-iters 500000 --train-samples 300000000`.

    Fix:
        Keep one; with `--rampup-batch-size` it has to be `--train-samples`.

    Known limits:
        Only Megatron-LM's own option names.

    Evidence:
        Megatron-LM, validate_args.
    """
    met = False
    for setup in setups(job):
        steps, samples = setup.claims("train_steps"), setup.claims("train_samples")
        if setup.source != "arguments" or not (steps or samples):
            continue
        met = True
        open_end = undecided(setup.subject, (*steps, *samples), setup.launch)
        if open_end is not None:
            yield open_end
        elif steps and samples and setup.has("--train-iters") and numbers(job_value(samples)):
            yield failed(
                setup.subject,
                f"{quoted(steps[0])} and {placed(samples[0])} both say how long to train: Megatron-LM takes one.",
                at=steps[0],
                also=((samples[0], "the other"),),
                remedy="Keep one of the two.",
                severity=Severity.WARNING if setup.has("--deepspeed") else None,
            )
        else:
            yield passed(setup.subject)
    if not met:
        yield not_applicable(job.name, "no launch tells Megatron-LM how long to train")
