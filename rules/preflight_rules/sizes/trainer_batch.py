"""Batch sizes given both in the trainer's arguments and in DeepSpeed's configuration."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Fix, Severity
from preflight.model.job import Claim, Job, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule
from preflight_rules.helpers import joined, placed, quoted, subjects, undecided
from preflight_rules.settings.given import is_compared
from preflight_rules.sizes.batch_sizes import KEYS, configured, given_to_trainer, uses_hugging_face


@rule(
    "BAT003",
    "trainer-and-deepspeed-batch-differ",
    severity=Severity.ERROR,
    profile="gate",
    fix="unsafe",
    otherwise="no batch size is given both to the program and to DeepSpeed",
    evidence=("hiyouga/LlamaFactory#201", "hendrycks/apps#9", "huggingface/transformers#27830"),
)
def trainer_and_deepspeed_batch_differ(job: Job) -> Iterator[Verdict]:
    """The trainer's arguments and DeepSpeed's configuration give different batch sizes.

    What it checks: The micro batch size and gradient accumulation steps given to the training program equal those of
    the DeepSpeed configuration it is started with, unless that has "auto".

    Why it matters: Hugging Face's trainer compares the two and stops. Other programs train with one and log the other.

    Example: `--gradient_accumulation_steps 2 --deepspeed ds.json` with `"gradient_accumulation_steps": 4` in ds.json.

    Fix: Write "auto" in the configuration, so that the argument is the only place.

    Known limits: For a program that is not known to be Hugging Face's trainer it is a warning; so it is where the
    trainer's own default differs, because the script may set another. Options of a script that declares them itself may
    be for something else than DeepSpeed's batch, and are not judged.
    """
    for subject, scope, launch in subjects(job):
        if is_compared(job, launch):
            yield passed(subject)
            continue
        for quantity in ("micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            ours, theirs = given_to_trainer(job, quantity, scope), configured(job, quantity, scope)
            if not ours and theirs and launch is not None:
                verdict = _against_default(job, launch, quantity, theirs)
                if verdict is not None:
                    yield verdict
            if not ours or not theirs or _may_mean_something_else(job, ours[0], launch, scope):
                continue
            undecided_verdict = undecided(subject, (*ours, *theirs), launch)
            one, other = numbers(job_value(ours)), numbers(job_value(theirs))
            if undecided_verdict is not None:
                yield undecided_verdict
            elif one and other and not set(one) & set(other):
                yield failed(
                    subject,
                    f"{quoted(ours[0])} gives {joined(one)}, but {placed(theirs[0])} gives {joined(other)}.",
                    at=ours[0],
                    also=((theirs[0], "DeepSpeed's value"),),
                    remedy=f'Write `"{KEYS[quantity]}": "auto"` in {theirs[0].span.path}, or make the two equal.',
                    severity=None if uses_hugging_face(job, launch, scope) else Severity.WARNING,
                    fix=_as_auto(theirs[0], quantity) if uses_hugging_face(job, launch, scope) else None,
                )
            else:
                yield passed(subject)


def _may_mean_something_else(job: Job, claim: Claim, launch: Launch | None, scope: Scope) -> bool:
    """Whether it is an option of a script that declares its options itself, without those of Hugging Face's trainer."""
    is_option = claim.spelling.startswith("-")
    return is_option and bool(job.about("declared_options", scope)) and not uses_hugging_face(job, launch, scope)


def _as_auto(claim: Claim, quantity: str) -> Fix | None:
    """A fix that writes "auto". Unsafe, because the intended value is a guess."""
    number = str(claim.alternatives[0]) if len(claim.alternatives) == 1 else ""
    return make_fix(f'write "{KEYS[quantity]}": "auto"', replace_text(claim, number, '"auto"'), safe=False)


#: Defaults of Hugging Face's `TrainingArguments` (transformers 4.50, training_args.py).
_TRAINER_DEFAULTS = {"micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
_OPTIONS = {
    "micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
}


def _against_default(job: Job, launch: Launch, quantity: str, theirs: tuple[Claim, ...]) -> Verdict | None:
    """Compare a number in the configuration with the trainer's default, if the whole command line is known."""
    if None in launch.arguments or not uses_hugging_face(job, launch, launch.scope):
        return None
    if job.about(quantity, launch.scope) != theirs:
        return None
    found, default = numbers(job_value(theirs)), _TRAINER_DEFAULTS[quantity]
    if not found or default in found:
        return None
    return failed(
        launch.id,
        f"{quoted(theirs[0])}, but the launch gives no {_OPTIONS[quantity]} and Hugging Face's trainer takes {default}:"
        " it stops when the two differ.",
        at=theirs[0],
        also=((launch, f"takes {default}"),),
        remedy=f'Give {_OPTIONS[quantity]} {found[0]}, or write `"{KEYS[quantity]}": "auto"`.',
        severity=Severity.WARNING,
    )
