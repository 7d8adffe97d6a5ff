"""Optimizers that are made before the model's parameters are divided."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.scripts.script_facts import launches_of, stated
from preflight_rules.sizes.fsdp import is_value, only_claim


@rule(
    "FSD013",
    "optimizer-made-before-fsdp",
    severity=Severity.ERROR,
    otherwise="no optimizer is made before FSDP divides its model",
    passes_with=("uses_fsdp",),
)
def optimizer_made_before_fsdp(job: Job) -> Iterator[Verdict]:
    """An optimizer takes the parameters of a model before FSDP divides them.

    What it checks: In one function, an optimizer made of `model.parameters()` comes after
    `FullyShardedDataParallel(model)` or `fully_shard(model)`. Under Accelerate's FSDP with `fsdp_use_orig_params:
    false` it comes after the model's `prepare`. With Lightning's `fsdp_native`, `configure_optimizers` takes
    `self.trainer.model.parameters()`.

    Why it matters: FSDP puts flat or divided parameters in the place of the ones that the optimizer holds, so it
    changes nothing that the model uses: the loss stays where it is. Lightning's `fsdp_native` notices it and stops.

    Example: `optimizer = AdamW(model.parameters())`, then `model = FSDP(model)`.

    Fix: Divide the model first, then make the optimizer from the divided model's parameters.

    Known limits: `use_orig_params=True` keeps the parameters, so nothing is reported there. An optimizer that another
    function makes is not seen.
    """
    for subject, optimizer in stated(job, "early_optimizer"):
        kind = next(iter(texts(optimizer.value)), "")
        if kind == "fsdp":
            yield _judge_wrapped(subject, optimizer)
        elif kind == "lightning":
            strategy = next((c for c in job.about("lightning_strategy") if c.span.path == optimizer.span.path), None)
            if strategy is not None and "fsdp_native" in strategy.spelling:
                yield undecided(subject, (strategy,)) or failed(
                    subject,
                    f"{quoted(optimizer)} takes the parameters of the module itself, but {placed(strategy)} divides"
                    " them before: Lightning stops because the optimizer refers to no parameter of FSDP.",
                    at=optimizer,
                    also=((strategy, "the strategy"),),
                    remedy="Give `self.trainer.model.parameters()` to the optimizer.",
                )
        else:
            yield from _judge_prepared(job, subject, optimizer)


def _judge_wrapped(subject: str, optimizer: Claim) -> Verdict:
    divided = optimizer.because[0]
    if optimizer.condition != divided.condition:
        return unknown(subject, f"{quoted(divided)} depends on the branch `{divided.condition}`", at=divided)
    return failed(
        subject,
        f"{quoted(optimizer)} takes the parameters before {placed(divided)} divides them: the optimizer changes"
        " parameters that the model no longer uses.",
        at=optimizer,
        also=((divided, "divided here"),),
        remedy="Make the optimizer after the model is divided, from the divided model's parameters.",
        severity=Severity.WARNING,
    )


def _judge_prepared(job: Job, subject: str, optimizer: Claim) -> Iterator[Verdict]:
    for launch in launches_of(job, optimizer):
        kept = only_claim(job, "fsdp_use_orig_params", launch.scope)
        kind = only_claim(job, "distributed_type", launch.scope)
        version = only_claim(job, "fsdp_version", launch.scope)
        if kept is None or kind is None or not is_value(kind, "FSDP") or is_value(version, 2):
            continue
        verdict = undecided(subject, (kept,))
        if verdict is not None:
            yield verdict
        elif not is_value(kept, False):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(optimizer)} takes the parameters before `prepare` wraps the model, and {placed(kept)} makes"
                " FSDP replace them.",
                at=optimizer,
                also=((kept, "the parameters are replaced"),),
                remedy="Prepare the model first and make the optimizer from it, or set fsdp_use_orig_params to true.",
                severity=Severity.WARNING,
            )
        return
