"""How gradients travel: in which number format, in pieces of which size, and whether anything waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Severity
from preflight_rules.reading import (
    certainly_several,
    job_value,
    nodes_spanned,
    numbers,
    quoted,
    subjects,
    texts,
    undecided,
)

#: Below so many elements a message costs more in latency than in bytes on any network.
_SMALLEST_BUCKET = 1_000_000


def _of(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source in ("deepspeed", "gpt-neox"))


@rule(
    "TRX001",
    "gradients-travel-in-full-precision",
    severity=Severity.INFO,
    evidence=("https://www.deepspeed.ai/docs/config-json/#communication-options", "https://arxiv.org/abs/2104.04473"),
)
def gradients_travel_in_full_precision(job: Job) -> Iterator[Verdict]:
    """Training is in 16 bits, and gradients are exchanged in 32.

    What it checks:
        `communication_data_type` is fp32 (in gpt-neox `fp32_allreduce`) while fp16 or bf16 is on.

    Why it matters:
        Every exchange sends twice the bytes. On a slow network this is most of a step.

    Example:
        `"bf16": {"enabled": true}, "communication_data_type": "fp32"`.

    Fix:
        Leave the key out, where the loss stays as it is.

    Known limits:
        Some choose it for the sake of exact sums; it is information.

    Evidence:
        DeepSpeed documentation, communication options; Narayanan et al., arXiv 2104.04473.
    """
    met = False
    seen: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        kinds = _of(job, "communication_data_type", scope)
        if not kinds:
            continue
        met = True
        open_end = undecided(subject, kinds, launch)
        half = [
            c
            for name in ("fp16_enabled", "bf16_enabled", "mixed_precision")
            for c in job.setting(name, scope)
            if c.value in (Known(True), Known("fp16"), Known("bf16"))
        ]
        key = (kinds[0].span.path, kinds[0].span.line)
        if open_end is not None:
            yield open_end
        elif half and all(text in ("fp32", "float32") for text in texts(job_value(kinds))) and key not in seen:
            seen.add(key)
            yield failed(
                subject,
                f"{quoted(kinds[0])} exchanges gradients in 32 bits while training is in 16 ({quoted(half[0])}): twice"
                " the bytes.",
                at=kinds[0],
                also=((half[0], "16 bits"),),
                remedy="Leave it out, where the loss stays as it is.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no configuration says how gradients are exchanged")


@rule(
    "TRX002",
    "gradients-exchanged-without-overlap",
    severity=Severity.INFO,
    evidence=(
        "https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training",
        "https://arxiv.org/abs/2006.15704",
    ),
)
def gradients_exchanged_without_overlap(job: Job) -> Iterator[Verdict]:
    """The exchange of gradients is kept from running beside the backward pass, or cut into tiny pieces.

    What it checks:
        In a launch over several nodes: `overlap_comm` is false in words, or `reduce_bucket_size` is below a million
        elements.

    Why it matters:
        The GPUs wait for the network after each backward pass, or for the latency of thousands of small messages.

    Example:
        `"zero_optimization": {"stage": 2, "overlap_comm": false}`.

    Fix:
        `"overlap_comm": true`, and buckets of some hundred million elements where memory allows.

    Known limits:
        Overlap takes memory for its buffers; where that is short it is rightly off.

    Evidence:
        DeepSpeed documentation, ZeRO options; Li et al., arXiv 2006.15704 (buckets in DDP).
    """
    met = False
    for subject, scope, launch in subjects(job):
        overlap, bucket = _of(job, "overlap_comm", scope), _of(job, "reduce_bucket_size", scope)
        if launch is None or not (overlap or bucket) or not certainly_several(nodes_spanned(job, launch)[0]):
            continue
        met = True
        open_end = undecided(subject, (*overlap, *bucket), launch)
        small = numbers(job_value(bucket)) if bucket else ()
        if open_end is not None:
            yield open_end
        elif overlap and overlap[0].value == Known(False):
            yield failed(
                subject,
                f"{quoted(overlap[0])} lets the GPUs wait for every exchange of gradients between nodes.",
                at=overlap[0],
                also=((launch, "over several nodes"),),
                remedy='Write `"overlap_comm": true`, where memory allows.',
            )
        elif small and 0 < max(small) < _SMALLEST_BUCKET:
            yield failed(
                subject,
                f"{quoted(bucket[0])} cuts gradients into messages so small that each costs more in latency than in"
                " bytes.",
                at=bucket[0],
                also=((launch, "over several nodes"),),
                remedy="Take some hundred million elements, as DeepSpeed does by itself.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no launch over several nodes says how gradients are exchanged")
