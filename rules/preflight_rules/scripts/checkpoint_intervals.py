"""Checkpoint intervals, training length and preemptible nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import certainly_several, nodes_spanned, placed, quoted, subjects, undecided
from preflight_rules.sizes.parallel_sizes import setups

#: Usual names of partitions whose jobs may be preempted.
_PREEMPTIBLE = re.compile(
    r"(?:^|[-_.])(?:preempt(?:ible|able|ed)?|spot|scaveng(?:e|er)?|interruptible|lowprio)(?:$|[-_.])"
)
_SPOT_LABELS = (
    re.compile(r"cloud\.google\.com/gke-(?:spot|preemptible)=true"),
    re.compile(r"eks\.amazonaws\.com/capacityType=SPOT"),
    re.compile(r"karpenter\.sh/capacity-type=spot"),
    re.compile(r"kubernetes\.azure\.com/scalesetpriority=spot"),
)
#: Words of a command line for a checkpoint to resume from.
_RESUME_WORDS = re.compile(r"resum|restor|load|ckpt|checkpoint|restart|auto_|requeue|snapshot|--save", re.IGNORECASE)


@rule(
    "FLT007",
    "nothing-saved-before-the-end",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch sets both its number of steps and its checkpoint interval",
    evidence=(
        ("checkpoint interval above total iterations: training ran, saved nothing", "NVlabs/neuralangelo#33"),
        ("The Llama 3 report, arXiv 2407.21783, section 3.3.4", "https://arxiv.org/abs/2407.21783"),
        (
            "Megatron-LM, training.py",
            "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/training.py",
        ),
    ),
)
def nothing_saved_before_the_end(job: Job) -> Iterator[Verdict]:
    """The interval between checkpoints is longer than the whole training.

    What it checks: Megatron-LM's `--save-interval` is at most `--train-iters`, and gpt-neox's checkpoint_factor at most
    train_iters.

    Why it matters: Any failure before the last step loses everything. On 16,384 GPUs Meta saw a failure every three
    hours.

    Example: `--train-iters 5000 --save-interval 10000`.

    Fix: Save at an interval no longer than the work that you can afford to lose.

    Known limits: On one node, or on an unknown number of nodes, the finding is informational.
    """
    for setup in setups(job):
        interval, steps = setup.claims("save_interval"), setup.claims("train_steps")
        if not interval or not steps:
            continue
        undecided_verdict = undecided(setup.subject, (*interval, *steps), setup.launch)
        every, whole = setup.number("save_interval"), setup.number("train_steps")
        if undecided_verdict is not None:
            yield undecided_verdict
        elif every and whole and every > whole > 1000:
            several = setup.launch is not None and certainly_several(nodes_spanned(job, setup.launch)[0])
            yield failed(
                setup.subject,
                f"{quoted(interval[0])} is longer than the training ({placed(steps[0])}): nothing is saved before its"
                " end.",
                at=interval[0],
                also=((steps[0], "the length of the whole run"),),
                remedy="Use an interval as short as the work that you can afford to lose.",
                severity=None if several else Severity.INFO,
            )
        else:
            yield passed(setup.subject)


@rule(
    "FLT008",
    "preemptible-nodes-without-resuming",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="nothing requests preemptible nodes",
    evidence=(
        ("Slurm's guide to preemption", "https://slurm.schedmd.com/preempt.html"),
        "facebookincubator/submitit#1708",
        ("GKE documentation on Spot VMs", "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms"),
    ),
)
def preemptible_nodes_without_resuming(job: Job) -> Iterator[Verdict]:
    """The job runs on preemptible nodes, and its launch names no checkpoint to resume from.

    What it checks: A partition called preempt, spot, scavenge ..., or a label of spot nodes, and a launch whose known
    arguments name no checkpoint to load or resume from.

    Why it matters: The job is requeued with the same command line and starts over each time. Training that takes longer
    than the usual time between two preemptions never ends.

    Example: `#SBATCH --partition=preempt` and `torchrun train.py --epochs 90`.

    Fix: Save often, and let the launch resume from the newest checkpoint.

    Known limits: A program that finds its last checkpoint by itself is fine.
    """
    for subject, scope, launch in subjects(job):
        places = _preemptible(job, scope)
        if not places or launch is None:
            continue
        undecided_verdict = undecided(subject, places[:1], launch)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif _may_resume(launch) or job.setting("hand_off_signal", scope):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(places[0])} requests preemptible nodes, and the launch names no checkpoint to resume from.",
                at=places[0],
                also=((launch, "starts from scratch"),),
                remedy="Save often, and let the launch resume from the newest checkpoint.",
                severity=None if launch.program else Severity.INFO,
            )


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
    return any(word is None or _RESUME_WORDS.search(word) for word in launch.arguments)


@rule(
    "BAT021",
    "training-length-given-twice",
    severity=Severity.ERROR,
    otherwise="no launch sets a training length for Megatron-LM",
    evidence=(
        (
            "Megatron-LM, validate_args",
            "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/arguments.py",
        ),
    ),
)
def training_length_given_twice(job: Job) -> Iterator[Verdict]:
    """Megatron-LM is given the training length both in steps and in samples.

    What it checks: `--train-iters` and `--train-samples` are not given together.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: `--train-iters 500000 --train-samples 300000000`.

    Fix: Keep one; with `--rampup-batch-size` it has to be `--train-samples`.

    Known limits: Only Megatron-LM's own option names are recognized.
    """
    for setup in setups(job):
        steps, samples = setup.claims("train_steps"), setup.claims("train_samples")
        if setup.source != "arguments" or not (steps or samples):
            continue
        undecided_verdict = undecided(setup.subject, (*steps, *samples), setup.launch)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif steps and samples and setup.has("--train-iters") and numbers(job_value(samples)):
            yield failed(
                setup.subject,
                f"{quoted(steps[0])} and {placed(samples[0])} both set the training length: Megatron-LM accepts only"
                f" one.",
                at=steps[0],
                also=((samples[0], "the other"),),
                remedy="Keep one of the two.",
                severity=Severity.WARNING if setup.has("--deepspeed") else None,
            )
        else:
            yield passed(setup.subject)
