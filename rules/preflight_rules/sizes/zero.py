"""DeepSpeed's configuration: unknown keys, offloading, and ZeRO with pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import SubjectQuestion, stated_by, subjects, subjects_with
from preflight.sources.tables import Generated, load_table
from preflight_rules.rendezvous.variables import distance
from preflight_rules.settings.tables import in_range, pinned, settings

#: The table of each section; these readers stop at an unknown key.
_STRICT = {
    "zero_optimization": "deepspeed_zero",
    "zero_optimization.offload_optimizer": "deepspeed_offload_optimizer",
    "zero_optimization.offload_param": "deepspeed_offload_param",
}
#: Keys of releases older than the tables.
_OLD = frozenset(
    (
        ("zero_optimization", "cpu_offload_params"),
        ("zero_optimization", "max_elements_per_comm"),
        ("zero_optimization.offload_optimizer", "buffer_size"),
    )
)
#: Sections at the top that have readers of their own, and so are in no table of keys.
_SECTIONS = frozenset(("zero_optimization", "hybrid_engine"))
_MIN_LENGTH = 6
#: Deprecated keys and their replacements.
_RENAMED = {
    "zero_optimization.cpu_offload": '`"offload_optimizer": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_param": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_params": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_use_pin_memory": '`"pin_memory": true` in the offload section',
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "`stage3_gather_16bit_weights_on_model_save`",
}


def _keys(job: Job) -> Iterator[tuple[str, str, Claim]]:
    """Every key once, with its section."""
    for claim in job.about("deepspeed_key"):
        for text in texts(claim.value):
            section, _, key = text.rpartition(".")
            yield section, key, claim


def _closed_keys(job: Job) -> Iterator[tuple[str, str, Claim]]:
    """Every key of the sections that reject unknown keys, with its section, once."""
    closed = {setting.key for setting in settings("deepspeed").values() if setting.closed} - set(_STRICT)
    claims = {(claim.span.path, claim.span.line, key): claim for key, claim in job.settings("deepspeed")}
    for (_, _, path), claim in claims.items():
        section, _, key = path.rpartition(".")
        if section in closed:
            yield section, key, claim


def _open_keys(job: Job) -> Iterator[Verdict]:
    for claim in job.about("deepspeed_key"):
        if isinstance(claim.value, Unresolved):
            yield unknown(job.name, f"the key {quoted(claim)} is unknown: {claim.value.why}", at=claim)


def _names(table: Generated, section: str) -> frozenset[str]:
    """Every key that a section accepts in some release."""
    if section and section not in _STRICT:
        prefix = f"{section}."
        found = {name for key in settings("deepspeed") if key.startswith(prefix) for name in (key[len(prefix) :],)}
        return frozenset(name for name in found if "." not in name)
    names = {name for row in table.rows for name in (row.dest, *row.spellings)}
    model = {
        key.removeprefix(f"{section}.") for key in settings("deepspeed") if section and key.startswith(f"{section}.")
    }
    return frozenset(names | {name for name in model if "." not in name} | (_SECTIONS if not section else frozenset()))


def _nearest(key: str, names: frozenset[str]) -> str:
    """The known key that `key` probably misspells; empty when there is none."""
    most = 2 if len(key) >= 2 * _MIN_LENGTH else 1
    near = sorted(
        (distance(key.lower(), name.lower(), most), name) for name in names if abs(len(name) - len(key)) <= most
    )
    return near[0][1] if near and near[0][0] <= most else ""


@rule(
    "DSP001",
    "deepspeed-key-unknown",
    severity=Severity.ERROR,
    profile="default",
    fix="unsafe",
    otherwise="no DeepSpeed configuration is read",
)
def deepspeed_key_unknown(job: Job) -> Iterator[Verdict]:
    """DeepSpeed does not read a key of its configuration.

    What it checks: Every key of the sections whose keys DeepSpeed declares in a model (`zero_optimization` and what is
    in it, `fp16`, `bf16`, `compile`, `tensorboard`, `comms_logger` and others) against those of 0.9 to 0.19; at the top
    level only names that look like a misspelling of a known key.

    Why it matters: In these sections DeepSpeed fails at startup ("extra fields not permitted"), which is an error. At
    the top level it ignores the key and trains with a default, which is a warning.

    Example: `"zero_optimization": {"stage": 2, "overlap_com": true}`.

    Fix: Use the name that the finding gives, or remove the key.

    Known limits: A key that only other releases have is reported as a warning, or as an error if it resembles a known
    key or the job's files pin a known release. Releases before 0.8 ignored unknown keys.
    """
    version = pinned(job, "deepspeed")
    yield from _open_keys(job)
    for section, key, claim in (*_keys(job), *_closed_keys(job)):
        known = _STRICT.get(section)
        model = settings("deepspeed").get(section)
        if (known is None and section and model is None) or (section, key) in _OLD:
            continue
        table = load_table(known or "deepspeed_keys")
        names = _names(table, section)
        if key in names or (not section and key in _SECTIONS) or key.startswith(("_", "//", "#")):
            yield passed(job.name)
            continue
        near = _nearest(key, names) if len(key) >= _MIN_LENGTH or section else ""
        plain = key.replace("-", "_")
        if not section and (not near or plain in _SECTIONS or table.find(plain) is not None):
            # With hyphens it is a key of gpt-neox, which reads files like this one.
            continue
        applies = in_range(version, model.since if model is not None else "", "")
        if applies is False:
            yield passed(job.name)
            continue
        what = "DeepSpeed stops at an unknown key there" if section else "DeepSpeed ignores it"
        since = f" (since {model.since})" if model is not None and model.since and not version else ""
        # A section leaves out what is "auto" before it looks at names.
        left_out = any(
            path == f"{section}.{key}" and other.alternatives == ("auto",) for path, other in job.settings("deepspeed")
        )
        if section and left_out:
            yield passed(job.name)
            continue
        newest = load_table("deepspeed_keys").newest
        sure = section and applies and (near or in_range(version, "", newest) if version else near)
        yield failed(
            job.name,
            f"{quoted(claim)} is not a key of {section or 'a DeepSpeed configuration'}"
            f"{f'; {near} is probably meant' if near else ''}: {what}{since}.",
            at=claim,
            remedy=f"Write `{near}`."
            if near
            else f"Remove it, or look it up for your version of DeepSpeed ({claim.span.path}).",
            severity=None if sure else Severity.WARNING,
            fix=make_fix(f"rename {key} to {near}", replace_text(claim, key, near), safe=False) if near else None,
        )


@rule(
    "DSP002",
    "offload-without-its-stage",
    severity=Severity.WARNING,
    otherwise="no DeepSpeed configuration offloads anything",
)
def offload_without_its_stage(job: Job) -> Iterator[Verdict]:
    """Parameters or optimizer states are offloaded, but the ZeRO stage does not support it.

    What it checks: `offload_param` has a device and the stage is below 3, or `offload_optimizer` has one and the stage
    is 0.

    Why it matters: The section has no effect, or DeepSpeed stops: the memory that it should save is used on the GPU.

    Example: `"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}`.

    Fix: `"stage": 3` to offload parameters, 1 to 3 to offload optimizer states; or remove the section.

    Known limits: It is not known which of the two was intended.
    """
    for subject, scope, launch in subjects(job):
        for quantity, least, what in (
            ("offload_param_device", 3, "parameters"),
            ("offload_optimizer_device", 1, "optimizer states"),
        ):
            devices = _deepspeed_claims(job, quantity, scope)
            if not devices or not all(text in ("cpu", "nvme") for text in texts(job_value(devices)) or ("",)):
                continue
            # An option of the program may say the stage.
            stages = _deepspeed_claims(job, "zero_stage", scope) or job.setting("zero_stage", scope)
            found = numbers(job_value(stages)) if stages else (0,)
            verdict = undecided(subject, (*devices, *stages), launch)
            if verdict is None and found and max(found) < least:
                shown = placed(stages[0]) if stages else "the default, stage 0,"
                verdict = failed(
                    subject,
                    f"{quoted(devices[0])} offloads {what} to host memory, but {shown} does not partition {what}:"
                    f" stage {least if least == 3 else '1 to 3'} does.",
                    at=devices[0],
                    also=tuple((c, "ZeRO stage") for c in stages[:1]),
                    remedy=f'Write `"stage": {max(least, 2)}`, or remove the section.',
                )
            yield verdict or passed(subject)


def _deepspeed_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source == "deepspeed")


@rule(
    "DSP003",
    "zero-stage-beside-pipeline",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no job uses both ZeRO and a pipeline",
    each=subjects_with(stated_by("deepspeed", "zero_stage"), "pipeline_parallel_size"),
)
def zero_stage_beside_pipeline(question: SubjectQuestion) -> Verdict | None:
    """ZeRO stage 2 or 3 is combined with DeepSpeed's pipeline parallelism.

    What it checks: In one gpt-neox configuration, or one launch of Megatron-DeepSpeed, that ZeRO's stage is 0 or 1
    where there is more than one pipeline stage.

    Why it matters: An assertion in DeepSpeed's pipeline engine fails at startup: partitioned gradients cannot be
    accumulated over the micro-batches of a pipeline.

    Example: `"pipe_parallel_size": 4` and `"zero_optimization": {"stage": 2}`.

    Fix: `"stage": 1`, or no pipeline.

    Known limits: Megatron-DeepSpeed with `--no-pipeline-parallel` is not reported. Other frameworks have their own
    pipelines.
    """
    stages, pipes = question.of
    zero, several = numbers(job_value(stages)), numbers(job_value(pipes))
    if not zero or not several or min(zero) < 2 or min(several) < 2 or _has_no_pipeline(question.of.launch):
        return None
    return failed(
        question.subject,
        f"{quoted(stages[0])} is set together with {placed(pipes[0])}: DeepSpeed's pipeline supports only"
        f" stage 0 or 1.",
        at=stages[0],
        also=((pipes[0], "pipeline"),),
        remedy='Write `"stage": 1`, or remove the pipeline.',
        severity=None if pipes[0].source in ("gpt-neox", "arguments") else Severity.WARNING,
    )


def _has_no_pipeline(launch: Launch | None) -> bool:
    return launch is not None and "--no-pipeline-parallel" in launch.arguments


@rule(
    "DSP004",
    "deepspeed-key-renamed",
    severity=Severity.WARNING,
    otherwise="no DeepSpeed configuration is read",
    passes_with=("deepspeed_key",),
)
def deepspeed_key_renamed(job: Job) -> Iterator[Verdict]:
    """A DeepSpeed configuration uses a key that has a new name.

    What it checks: The keys of `zero_optimization` that DeepSpeed accepts with a warning: cpu_offload and similar,
    stage3_gather_fp16_weights_on_model_save. Alone the finding is informational.

    Why it matters: Together with the new key DeepSpeed fails at startup; alone it works until it is removed.

    Example: `"zero_optimization": {"stage": 2, "cpu_offload": true}`.

    Fix: Use the new name.

    Known limits: Only keys that DeepSpeed itself marks as deprecated.
    """
    keys = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    yield from _open_keys(job)
    for section, key, claim in _keys(job):
        new = _RENAMED.get(f"{section}.{key}")
        if new is None:
            continue
        replacement = (
            claim.span.path,
            f"{section}.{new.split(chr(34))[1] if chr(34) in new else new.strip('`')}",
        ) in keys
        yield failed(
            job.name,
            f"{quoted(claim)} is an old name"
            + (
                f", and {new} is given as well: DeepSpeed rejects the combination."
                if replacement
                else f": it is now {new}."
            ),
            at=claim,
            remedy=f"Write {new}." if not replacement else f"Remove {quoted(claim)}.",
            severity=None if replacement else Severity.INFO,
        )


@rule("DSP005", "nvme-offload-without-path", severity=Severity.WARNING, otherwise="nothing is offloaded to NVMe")
def nvme_offload_without_path(job: Job) -> Iterator[Verdict]:
    """Parameters or optimizer states are offloaded to NVMe without a path.

    What it checks: A section of ZeRO stage 3 that offloads to `nvme` has an `nvme_path`, or a list of them for the
    local ranks.

    Why it matters: DeepSpeed joins the path to a folder of its own when it sets the engine up, and stops there with a
    TypeError in every rank, once the model was built.

    Example: `"offload_optimizer": {"device": "nvme"}`.

    Fix: `"nvme_path": "/local_nvme"`, a disk of the node itself.

    Known limits: Below stage 3 the optimizer is always offloaded to host memory, and nothing is reported.
    """
    keys = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    for subject, scope, launch in subjects(job):
        for quantity, section in (
            ("offload_optimizer_device", "offload_optimizer"),
            ("offload_param_device", "offload_param"),
        ):
            devices = _deepspeed_claims(job, quantity, scope)
            if not devices or "nvme" not in (texts(job_value(devices)) or ("nvme",)):
                continue
            stages = _deepspeed_claims(job, "zero_stage", scope)
            names = {f"zero_optimization.{section}.{key}" for key in ("nvme_path", "nvme_path_per_local_rank")}
            path = devices[0].span.path
            if undecided_verdict := undecided(subject, (*devices, *stages), launch):
                yield undecided_verdict
            elif any((path, name) in keys for name in names) or 3 not in numbers(job_value(stages)):
                yield passed(subject)
            elif any(claim.span.path == path for claim in job.about("deepspeed_key")):
                yield failed(
                    subject,
                    f"{quoted(devices[0])} has no path: {section} lacks `nvme_path`, and DeepSpeed stops in"
                    " every rank.",
                    at=devices[0],
                    remedy='Add `"nvme_path"` with a folder on a local disk of each node.',
                )
