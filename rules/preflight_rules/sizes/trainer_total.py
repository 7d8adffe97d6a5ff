"""The total batch size, given to DeepSpeed as one number and to the trainer as factors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Unresolved, is_whole_number
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import placed, undecided
from preflight_rules.sizes.batch import data_parallel_ranks
from preflight_rules.sizes.batch_sizes import configured, given_to_trainer, uses_hugging_face

#: Usual names of scripts' own options: samples of one rank, and accumulated steps.
_OF_ONE_RANK = re.compile(
    r"--(?:per[-_](?:device|gpu|replica|rank|card)[-_](?:train[-_])?batch[-_]?size"
    r"|(?:train[-_]|micro[-_])*batch[-_]?size[-_]per[-_](?:device|gpu|replica|rank|card))"
)
_ADDED_UP = re.compile(
    r"--(?:grad(?:ient)?s?[-_]acc(?:um(?:ulat(?:e|ion))?)?[-_]?(?:steps?|iters?|batches)?"
    r"|accum(?:ulat(?:e|ion))?[-_](?:grad(?:ient)?s?[-_])?(?:steps?|iters?|batches))"
)


@rule(
    "HFT002",
    "total-batch-differs-from-its-factors",
    severity=Severity.ERROR,
    otherwise="no launch passes a total batch size to DeepSpeed and its factors to the trainer",
    evidence=(
        "hendrycks/apps#9",
        ("transformers' guide to DeepSpeed", "https://huggingface.co/docs/transformers/deepspeed"),
    ),
)
def total_batch_differs_from_its_factors(job: Job) -> Iterator[Verdict]:
    """DeepSpeed's train_batch_size does not equal the trainer's batch x accumulation x ranks.

    What it checks: If the DeepSpeed configuration gives train_batch_size alone, and the command line (or a file of
    arguments) gives the batch of one rank, accumulation steps, or both: the number equals batch of one rank x
    accumulation x ranks.

    Why it matters: DeepSpeed divides its number by the ranks and uses the result as the batch of each, whatever the
    trainer loads. Hugging Face's trainer compares the two and stops.

    Example: `"train_batch_size": 8` on 8 GPUs with `--batch-size-per-replica=2 --grad-acc-steps=8`, which is 128.

    Fix: Write `"train_batch_size": "auto"` for Hugging Face's trainer, otherwise the product.

    Known limits: A script's own options are recognised by their names, and then it is a warning. BAT001 and BAT003
    judge a configuration that also gives the factors.
    """
    for launch in job.launches:
        scope = launch.scope
        total = configured(job, "train_batch_size", scope)
        if not total or configured(job, "micro_batch_size_per_gpu", scope):
            continue
        if configured(job, "gradient_accumulation_steps", scope):
            continue
        micro = given_to_trainer(job, "micro_batch_size_per_gpu", scope)
        steps = given_to_trainer(job, "gradient_accumulation_steps", scope)
        own = {} if micro and steps else _script_factors(launch)
        factors = {
            "samples of one rank": (numbers(job_value(micro)) if micro else own.get("micro", ())),
            "accumulation steps": (numbers(job_value(steps)) if steps else own.get("steps", ())),
        }
        if not micro and not steps and not own:
            continue
        undecided_verdict = undecided(launch.id, (*total, *micro, *steps), launch)
        ranks, because = _ranks(job, launch, scope)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif len(ranks) != 1 or any(len(found) > 1 for found in factors.values()):
            yield unknown(launch.id, "cannot determine how many ranks share the batch", at=total[0])
        else:
            yield _judged(job, launch, total[0], (*micro, *steps, *because), factors, ranks[0], guessed=bool(own))


def _script_factors(launch: Launch) -> dict[str, tuple[int, ...]]:
    """The factors among the script's own options."""
    found: dict[str, tuple[int, ...]] = {}
    words = [*launch.arguments, None]
    for word, following in itertools.pairwise(words):
        name, equals, value = (word or "").partition("=")
        text = value if equals else (following or "")
        for kind, pattern in (("micro", _OF_ONE_RANK), ("steps", _ADDED_UP)):
            if pattern.fullmatch(name) and is_whole_number(text):
                found[kind] = (int(text),)
    return found


def _ranks(job: Job, launch: Launch, scope: Scope) -> tuple[tuple[int, ...], tuple[Claim, ...]]:
    """The data-parallel ranks; deepspeed with a number of GPUs and no hosts runs on one node."""
    ranks, because = data_parallel_ranks(job, launch, scope)
    if isinstance(ranks, Unresolved) and launch.launcher == "deepspeed" and not job.about("nodes", scope):
        because = job.setting("processes_per_node", scope)
        ranks = job_value(because) if because else ranks
    return numbers(ranks), because


def _judged(
    job: Job,
    launch: Launch,
    total: Claim,
    claims: tuple[Claim, ...],
    factors: dict[str, tuple[int, ...]],
    ranks: int,
    *,
    guessed: bool,
) -> Verdict:
    known = {name: found[0] for name, found in factors.items() if found}
    product = ranks
    for factor in known.values():
        product *= factor
    (size, *_) = numbers(total.value) or (0,)
    both = len(known) == len(factors)
    if size == product or (not both and product > 0 and size % product == 0) or size < 1:
        return passed(launch.id)
    spelled = " x ".join(f"{count} {name}" for name, count in known.items())
    certain = both and not guessed and uses_hugging_face(job, launch, launch.scope)
    return failed(
        launch.id,
        f"{placed(total)} is the batch of all ranks, but {spelled} x {ranks} ranks"
        f" {'is' if both else 'is already'} {product}{'' if both else ', which does not divide it'}.",
        at=total,
        also=((launch, f"{spelled} x {ranks} ranks"), *((claim, "a factor") for claim in claims[:6])),
        remedy=f'Write "auto" for Hugging Face\'s trainer, else "train_batch_size": {product}.',
        severity=None if certain else Severity.WARNING,
        confidence=Confidence.MEDIUM if guessed else None,
    )
