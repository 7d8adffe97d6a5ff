"""Number formats (fp16 and bf16 together, obsolete keys, formats that the GPU does not support), and the exchange of
gradients: format, bucket size and overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import AUTO, Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import (
    LaunchQuestion,
    Stated,
    SubjectQuestion,
    launches_with,
    stated_by,
    subjects,
    subjects_with,
)
from preflight_rules.launches import certainly_several, nodes_spanned
from preflight_rules.sizes.memory import gpu_of

_BF16_FROM, _FP8_FROM = 8.0, 8.9


def _enabling_claims(job: Job, quantity: str, scope: Scope, source: str = "") -> tuple[Claim, ...]:
    """The claims that enable a setting in `scope`."""
    return tuple(c for c in job.setting(quantity, scope) if c.value == Known(True) and source in ("", c.source))


@rule("PRC001", "two-half-precisions-at-once", severity=Severity.ERROR, otherwise="no half precision is enabled")
def two_half_precisions_at_once(job: Job) -> Iterator[Verdict]:
    """fp16 and bf16 are both switched on.

    What it checks: One DeepSpeed configuration with `fp16.enabled` and `bf16.enabled` both true; one command line with
    `--fp16` and `--bf16` for Megatron-LM or Hugging Face's trainer, or one file of training arguments or one script
    with both on.

    Why it matters: All three fail at startup: the formats exclude each other.

    Example: `"fp16": {"enabled": true}, "bf16": {"enabled": true}`.

    Fix: Keep bf16 on GPUs that have it (A100 and later), fp16 on older ones.

    Known limits: `"auto"` is filled in by the trainer and never counts.
    """
    for subject, scope, launch in subjects(job):
        for half, brain in (
            (
                _enabling_claims(job, "fp16_enabled", scope, "deepspeed"),
                _enabling_claims(job, "bf16_enabled", scope, "deepspeed"),
            ),
            (_stated_as(job, "fp16", scope), _stated_as(job, "bf16", scope)),
        ):
            if not half and not brain:
                continue
            both = half and brain and half[0].span.path == brain[0].span.path
            others = _unknown_switches(job, scope, half, brain)
            verdict = undecided(subject, (*half[:1], *brain[:1], *others), launch)
            if verdict is None and both:
                verdict = failed(
                    subject,
                    f"fp16 ({placed(half[0])}) and bf16 ({placed(brain[0])}) are both enabled: the job fails at"
                    " startup.",
                    at=half[0],
                    also=((brain[0], "bf16"),),
                    remedy="Keep only one of them: bf16 if the GPU supports it, otherwise fp16.",
                )
            yield verdict or passed(subject)


def _unknown_switches(job: Job, scope: Scope, half: tuple[Claim, ...], brain: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The switches with unknown values, except `"auto"`, which the trainer fills in; of a trainer's the missing one."""
    of_trainer = (*(("setting.transformers.fp16",) * (not half)), *(("setting.transformers.bf16",) * (not brain)))
    return tuple(
        c
        for quantity in ("fp16_enabled", "bf16_enabled", *of_trainer)
        for c in job.setting(quantity, scope)
        if isinstance(c.value, Unresolved) and c.value != AUTO
    )


def _stated_as(job: Job, name: str, scope: Scope) -> tuple[Claim, ...]:
    """The claims that request a format from a trainer: a flag, a key of a file, an argument in the script."""
    sources = ("arguments", "trainer", "python")
    return tuple(c for c in job.about("mixed_precision", scope) if c.source in sources and c.value == Known(name))


@rule(
    "PRC002",
    "bfloat16-inside-fp16-section",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fp16 section names a type",
    each=subjects_with(stated_by("deepspeed", "fp16_type")),
)
def bfloat16_inside_fp16_section(question: SubjectQuestion) -> Verdict | None:
    """bfloat16 is requested in the fp16 section, which only old versions read.

    What it checks: `fp16.type` is bfloat16 in a DeepSpeed or gpt-neox configuration that has no `bf16` section switched
    on.

    Why it matters: DeepSpeed ignores `fp16.type`: it trains in fp16, with a loss scale of its own, while gpt-neox makes
    the model bfloat16. With ZeRO stage 0 and pipeline parallelism the first step fails.

    Example: `"fp16": {"enabled": true, "type": "bfloat16", "loss_scale": 0}`.

    Fix: `"precision": "bfloat16"` in gpt-neox, or `"bf16": {"enabled": true}` and no fp16 section.

    Known limits: gpt-neox 1.0 with its own fork of DeepSpeed understood it.
    """
    kinds = question.claims
    job, scope = question.of.job, question.of.scope
    brain = _enabling_claims(job, "bf16_enabled", scope)
    off = any(c.value == Known(False) for c in job.setting("fp16_enabled", scope))
    if not off and not brain and all(text.lower() in ("bfloat16", "bf16") for text in texts(job_value(kinds))):
        stage = job.setting("zero_stage", scope)
        return failed(
            question.subject,
            f"{quoted(kinds[0])} is in the fp16 section, where DeepSpeed ignores it: DeepSpeed trains"
            " in fp16, and the first step with a bfloat16 model fails.",
            at=kinds[0],
            also=tuple((c, "ZeRO stage") for c in stage[:1]),
            remedy='Write `"bf16": {"enabled": true}` (in gpt-neox `"precision": "bfloat16"`) in place of the fp16'
            " section.",
        )
    return None


@rule("PRC003", "number-format-missing-on-gpu", severity=Severity.WARNING, otherwise="no launch requests bf16 or fp8")
def number_format_missing_on_gpu(job: Job) -> Iterator[Verdict]:
    """The training uses a number format that its GPU does not support.

    What it checks: bf16 on a GPU named in the files whose compute capability is below 8.0 (V100, T4, P100, RTX 20xx),
    and fp8 below 8.9 (A100 and older).

    Why it matters: Trainers and Transformer Engine fail at startup; plain torch emulates bf16 and is many times slower.

    Example: `#SBATCH --gres=gpu:v100:4` and `--bf16`.

    Fix: fp16 with a dynamic loss scale on V100 and T4, bf16 on A100; or request a GPU that has the format.

    Known limits: The GPU must be named: in the request, a constraint, a partition, a node label or an instance type.
    """
    for subject, scope, launch in subjects(job):
        formats = _formats(job, scope)
        if not formats:
            continue
        found = gpu_of(job, scope)
        if found is None:
            yield undecided(subject, job.setting("gpu_type", scope), launch) or passed(subject)
            continue
        gpu, where = found
        for claim, name, least in formats:
            verdict = undecided(subject, (claim,), launch)
            if verdict is None and gpu.capability < least:
                verdict = failed(
                    subject,
                    f"{name} ({quoted(claim)}) is not supported by {placed(where)}: {gpu.name} has compute"
                    f" capability {gpu.capability}, but {name} needs {least}.",
                    at=claim,
                    also=((where, gpu.name),),
                    remedy=f"Train in {'fp16' if gpu.capability < _BF16_FROM else 'bf16'} there, or request a GPU "
                    f"that supports {name}.",
                )
            yield verdict or passed(subject)


def _formats(job: Job, scope: Scope) -> list[tuple[Claim, str, float]]:
    """Every claim that requests a format, the format, and the compute capability that it needs."""
    found = [(claim, "bf16", _BF16_FROM) for claim in _enabling_claims(job, "bf16_enabled", scope)[:1]]
    for claim in job.setting("mixed_precision", scope):
        name = "/".join(texts(claim.value))
        if name in ("bf16", "fp8"):
            found.append((claim, name, _BF16_FROM if name == "bf16" else _FP8_FROM))
    found.extend((claim, "fp8", _FP8_FROM) for claim in job.setting("fp8_format", scope)[:1])
    return found


def _fp16(stated: Stated[Launch | None]) -> tuple[Claim, ...]:
    """The claims that turn fp16 on."""
    job, scope = stated.job, stated.scope
    return tuple(_enabling_claims(job, "fp16_enabled", scope) or _stated_as(job, "fp16", scope))


@rule(
    "PRC004",
    "fp16-without-loss-scaling",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no loss scale is given for fp16",
    each=subjects_with("fp16_loss_scale", where=lambda stated: bool(_fp16(stated))),
)
def fp16_without_loss_scaling(question: SubjectQuestion) -> Verdict | None:
    """fp16 is used without loss scaling.

    What it checks: fp16 is switched on with a fixed loss scale of 1.

    Why it matters: Small gradients become 0 in fp16. Training continues, but learns slowly or not at all.

    Example: `"fp16": {"enabled": true, "loss_scale": 1}`.

    Fix: `"loss_scale": 0`, which means dynamic loss scaling.

    Known limits: A model without small gradients trains anyway.
    """
    scales, on = question.claims, _fp16(question.of)
    if all(value in (1, 1.0) and not isinstance(value, bool) for c in scales for value in c.alternatives):
        return failed(
            question.subject,
            f"{quoted(scales[0])} does not scale the loss, so small gradients become 0 in fp16.",
            at=scales[0],
            also=((on[0], "fp16"),),
            remedy="Use 0 for a dynamic loss scale.",
        )
    return None


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
