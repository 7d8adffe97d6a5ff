"""Lightning: precision and strategy that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight_rules.reading import placed, quoted, texts, undecided

#: What each family of strategies takes (`_PRECISION_INPUT` in lightning/fabric/plugins/precision/{deepspeed,fsdp}.py,
#: `mp_precision_supported` in fabric/connector.py), in lightning 2.6.6.
_TAKES = {
    "deepspeed": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "fsdp": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "modelparallel": ("32-true", "16-true", "bf16-true", "bf16-mixed"),
}
#: New in 2.1.0; 2.0.0 to 2.0.9 refuse them with DeepSpeed.
_SINCE_2_1 = ("16-true", "bf16-true")
#: Older spellings of the same (lightning/fabric/connector.py, `_convert_precision_to_unified_args`).
_OLD = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_VERSION = lazy_pattern(r"(?:lightning|pytorch-lightning)(?:==|>=|~=|>)(\d+)\.(\d+)")


@rule(
    "LIT001",
    "lightning-precision-not-for-strategy",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("Lightning-AI/litgpt#116", "https://lightning.ai/docs/fabric/stable/fundamentals/precision.html"),
)
def precision_not_for_strategy(job: Job) -> Iterator[Verdict]:
    """Lightning is given a precision that its strategy does not take.

    What it checks:
        precision and strategy of one `Fabric(...)` or `Trainer(...)`: DeepSpeed and FSDP take 32-true, 16-true,
        bf16-true, 16-mixed and bf16-mixed; model parallelism takes no 16-mixed.

    Why it matters:
        Lightning stops at start: "precision=... is not supported in DeepSpeed".

    Example:
        `Fabric(strategy="deepspeed", precision="64-true")`, or before Lightning 2.1 with `precision="bf16-true"`.

    Fix:
        Take one of the precisions that the message lists: bf16-mixed works with all of them in every version.

    Known limits:
        16-true and bf16-true with DeepSpeed are new in Lightning 2.1, so they are a warning, and nothing where the
        job's files pin 2.1 or a later version. Precision plugins are not looked at.

    Evidence:
        Lightning-AI/litgpt#116; Lightning's documentation of precisions, and its own lists at 2.0.0, 2.0.9, 2.1.0 and
        2.6.6.
    """
    met = False
    strategies = {claim.span.path: claim for claim in job.about("lightning_strategy")}
    for precision in job.about("lightning_precision"):
        strategy = strategies.get(precision.span.path)
        several = sum(claim.span.path == precision.span.path for claim in job.about("lightning_strategy")) > 1
        if strategy is None or several:
            continue
        met = True
        open_end = undecided(precision.span.path, (precision, strategy))
        yield open_end if open_end is not None else _judged(job, precision, strategy)
    if not met:
        yield not_applicable(job.name, "no script gives Lightning both a strategy and a precision")


def _judged(job: Job, precision: Claim, strategy: Claim) -> Verdict:
    names = [_OLD.get(text, text) for text in texts(precision.value)]
    family = next(iter(texts(strategy.value)), "")
    takes = _TAKES.get(family, ())
    subject = precision.span.path
    if not takes or not names:
        return passed(subject)
    if all(name not in takes for name in names):
        return failed(
            subject,
            f"{quoted(precision)} is not taken with {placed(strategy)}: Lightning stops at start.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy=f"Take one of {', '.join(takes)}.",
        )
    if family == "deepspeed" and all(name in _SINCE_2_1 for name in names) and not _is_new(job):
        return failed(
            subject,
            f"{quoted(precision)} with {placed(strategy)} needs Lightning 2.1; before, it stops with 'not supported in"
            " DeepSpeed', and no file of the job says which version is installed.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy="Pin lightning>=2.1, or take bf16-mixed, which every version has.",
            severity=Severity.WARNING,
        )
    return passed(subject)


def _is_new(job: Job) -> bool:
    """Whether a file of the job asks for Lightning 2.1 or later."""
    for claim in job.about("package"):
        for text in texts(claim.value):
            match = _VERSION.match(text)
            if match is not None and (int(match[1]), int(match[2])) >= (2, 1):
                return True
    return False


@rule(
    "LIT002",
    "lightning-accumulation-in-deepspeed-file",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/deepspeed.html",),
)
def accumulation_in_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """Lightning's Trainer is given a DeepSpeed configuration that says how gradients are accumulated.

    What it checks:
        A DeepSpeed configuration that a script gives to `DeepSpeedStrategy(config=...)` beside a `Trainer` has no
        gradient_accumulation_steps.

    Why it matters:
        The Trainer sets the key itself, from accumulate_grad_batches, and stops where it is there already: "Do not set
        `gradient_accumulation_steps` in the DeepSpeed config".

    Example:
        `Trainer(strategy=DeepSpeedStrategy(config="ds.json"))` with `"gradient_accumulation_steps": 4` in ds.json.

    Fix:
        Take the key out and give `accumulate_grad_batches` to the Trainer.

    Known limits:
        Fabric leaves the key alone, and so does this rule.

    Evidence:
        Lightning's guide to DeepSpeed; lightning/pytorch/strategies/deepspeed.py of lightning 2.6.6
        (`_format_batch_size_and_grad_accum_config`).
    """
    trainers = [
        claim
        for claim in job.about("training_framework")
        if {"lightning", "pytorch_lightning"} & set(claim.alternatives) and "Trainer(" in claim.spelling
    ]
    strategies = [claim for claim in job.about("lightning_strategy") if claim.alternatives == ("deepspeed",)]
    steps = [claim for claim in job.about("gradient_accumulation_steps") if claim.source == "deepspeed"]
    if not trainers or not strategies:
        yield not_applicable(job.name, "no Lightning Trainer with DeepSpeed")
        return
    for claim in strategies:
        open_end = undecided(claim.span.path, (claim,))
        if open_end is not None:
            yield open_end
            return
    if not steps:
        yield passed(trainers[0].span.path)
        return
    yield failed(
        trainers[0].span.path,
        f"{placed(steps[0])} in DeepSpeed's configuration: Lightning's Trainer sets that itself and stops.",
        at=steps[0],
        also=((strategies[0], "the strategy"),),
        remedy="Take gradient_accumulation_steps out and give accumulate_grad_batches to the Trainer.",
    )
