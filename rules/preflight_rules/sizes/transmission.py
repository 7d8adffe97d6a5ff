"""The exchange of gradients: number format, bucket size and overlap."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Known, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import quoted
from preflight.plugins.questions import LaunchQuestion, launches_with, subjects
from preflight_rules.launches import certainly_several, nodes_spanned

#: Below this number of elements the latency of a message exceeds its transfer time.
_MIN_BUCKET_ELEMENTS = 1_000_000


def _setting(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source in ("deepspeed", "gpt-neox"))


@rule(
    "TRX001",
    "gradients-travel-in-full-precision",
    severity=Severity.INFO,
    otherwise="no configuration sets how gradients are exchanged",
    profile="pedantic",
)
def gradients_travel_in_full_precision(job: Job) -> Iterator[Verdict]:
    """Training is in 16 bits, and gradients are exchanged in 32.

    What it checks: `communication_data_type` is fp32 (in gpt-neox `fp32_allreduce`) while fp16 or bf16 is on.

    Why it matters: Every exchange sends twice the bytes. On a slow network this is most of a step.

    Example: `"bf16": {"enabled": true}, "communication_data_type": "fp32"`.

    Fix: Remove the key, if the loss does not change without it.

    Known limits: Some choose it on purpose for exact sums, so the finding is informational.
    """
    for subject, scope, launch in subjects(job):
        kinds = _setting(job, "communication_data_type", scope)
        if not kinds:
            continue
        verdict = undecided(subject, kinds, launch)
        half = [
            c
            for name in ("fp16_enabled", "bf16_enabled", "mixed_precision")
            for c in job.setting(name, scope)
            if c.value in (Known(True), Known("fp16"), Known("bf16"))
        ]
        if verdict is None and half and all(text in ("fp32", "float32") for text in texts(job_value(kinds))):
            verdict = failed(
                subject,
                f"{quoted(kinds[0])} exchanges gradients in 32 bits while training is in 16 ({quoted(half[0])}): twice"
                " the bytes.",
                at=kinds[0],
                also=((half[0], "16 bits"),),
                remedy="Remove it, if the loss stays the same without it.",
            )
        yield verdict or passed(subject)


@rule(
    "TRX002",
    "gradients-exchanged-without-overlap",
    severity=Severity.INFO,
    otherwise="no launch over several nodes sets how gradients are exchanged",
    profile="pedantic",
    each=launches_with(
        also=(
            lambda job, scope: _setting(job, "overlap_comm", scope),
            lambda job, scope: _setting(job, "reduce_bucket_size", scope),
        ),
        where=lambda stated: any(stated) and certainly_several(nodes_spanned(stated.job, stated.launch)[0]),
    ),
)
def gradients_exchanged_without_overlap(question: LaunchQuestion) -> Verdict | None:
    """The exchange of gradients does not overlap with the backward pass, or uses tiny buckets.

    What it checks: In a launch over several nodes: `overlap_comm` is explicitly false, or `reduce_bucket_size` is below
    a million elements.

    Why it matters: The GPUs wait for the network after each backward pass, or for the latency of thousands of small
    messages.

    Example: `"zero_optimization": {"stage": 2, "overlap_comm": false}`.

    Fix: `"overlap_comm": true`, and buckets of a few hundred million elements where memory allows.

    Known limits: Overlap needs memory for its buffers; where that is short it is right to switch it off.
    """
    (overlap, bucket), launch = question.of, question.of.launch
    small = numbers(job_value(bucket)) if bucket else ()
    if overlap and overlap[0].value == Known(False):
        return failed(
            question.subject,
            f"{quoted(overlap[0])} makes the GPUs wait for every exchange of gradients between nodes.",
            at=overlap[0],
            also=((launch, "over several nodes"),),
            remedy='Write `"overlap_comm": true`, if memory allows.',
        )
    if small and 0 < max(small) < _MIN_BUCKET_ELEMENTS:
        return failed(
            question.subject,
            f"{quoted(bucket[0])} cuts gradients into messages so small that latency costs more than the transfer"
            f" itself.",
            at=bucket[0],
            also=((launch, "over several nodes"),),
            remedy="Use several hundred million elements, as DeepSpeed's default does.",
        )
    return None
