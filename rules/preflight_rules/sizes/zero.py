"""DeepSpeed's own configuration: keys nobody reads, offload without its stage, ZeRO beside a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Scope, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.outcome import Severity
from preflight.tables.deepspeed_keys import DEEPSPEED_KEYS
from preflight.tables.deepspeed_offload_optimizer import DEEPSPEED_OFFLOAD_OPTIMIZER
from preflight.tables.deepspeed_offload_param import DEEPSPEED_OFFLOAD_PARAM
from preflight.tables.deepspeed_zero import DEEPSPEED_ZERO
from preflight.tables.row import Generated
from preflight_rules.meeting.variables import distance
from preflight_rules.reading import job_value, numbers, placed, quoted, subjects, texts, undecided

#: Which table speaks of which section; these readers stop at a key they do not know.
_STRICT: dict[str, Generated] = {
    "zero_optimization": DEEPSPEED_ZERO,
    "zero_optimization.offload_optimizer": DEEPSPEED_OFFLOAD_OPTIMIZER,
    "zero_optimization.offload_param": DEEPSPEED_OFFLOAD_PARAM,
}
#: Keys of releases before the oldest in the tables.
_OLD = frozenset(
    (
        ("zero_optimization", "cpu_offload_params"),
        ("zero_optimization", "max_elements_per_comm"),
        ("zero_optimization.offload_optimizer", "buffer_size"),
    )
)
#: Sections at the top that have readers of their own, and so stand in no table of keys.
_SECTIONS = frozenset(("zero_optimization", "hybrid_engine"))
_SHORTEST_NEAR = 6
#: Taken and warned about; what replaces them.
_RENAMED = {
    "zero_optimization.cpu_offload": '`"offload_optimizer": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_param": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_params": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_use_pin_memory": '`"pin_memory": true` in the offload section',
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "`stage3_gather_16bit_weights_on_model_save`",
}


def _keys(job: Job) -> Iterator[tuple[str, str, Claim]]:
    """Every key once, with the section it stands in."""
    for claim in job.about("deepspeed_key"):
        for text in texts(claim.value):
            section, _, key = text.rpartition(".")
            yield section, key, claim


def _open_keys(job: Job) -> Iterator[Verdict]:
    for claim in job.about("deepspeed_key"):
        if isinstance(claim.value, Unresolved):
            yield unknown(job.name, f"which key {quoted(claim)} is: {claim.value.why}", at=claim)


def _nearest(key: str, known: Generated) -> str:
    """The known key that `key` is one or two slips away from; empty when there is none."""
    most = 2 if len(key) >= 2 * _SHORTEST_NEAR else 1
    names = {name for row in known.rows for name in (row.dest, *row.spellings)}
    if known is DEEPSPEED_KEYS:
        names |= _SECTIONS
    near = sorted(
        (distance(key.lower(), name.lower(), most), name) for name in names if abs(len(name) - len(key)) <= most
    )
    return near[0][1] if near and near[0][0] <= most else ""


@rule(
    "DSP001",
    "deepspeed-key-unknown",
    severity=Severity.WARNING,
    fix="unsafe",
    evidence=(
        "https://github.com/deepspeedai/DeepSpeed/blob/v0.16.9/deepspeed/runtime/config_utils.py",
        "https://www.deepspeed.ai/docs/config-json/",
    ),
)
def deepspeed_key_unknown(job: Job) -> Iterator[Verdict]:
    """A key of a DeepSpeed configuration is one that DeepSpeed does not read.

    What it checks:
        Every key of `zero_optimization`, `offload_optimizer` and `offload_param` against those that DeepSpeed
        declares, 0.9 to 0.19; at the top only names that are a slip away from one that is read.

    Why it matters:
        In these sections DeepSpeed stops at start ("extra fields not permitted"). At the top it ignores the key, and
        trains with a default.

    Example:
        `"zero_optimization": {"stage": 2, "overlap_com": true}`.

    Fix:
        Take the name that the finding gives, or remove the key.

    Known limits:
        A key of a release outside these versions is reported, too. Releases before 0.8 ignored unknown keys.

    Evidence:
        DeepSpeed, runtime/config_utils.py (extra="forbid"), zero/config.py; its documentation.
    """
    met = False
    yield from _open_keys(job)
    for section, key, claim in _keys(job):
        known = _STRICT.get(section)
        if (known is None and section) or (section, key) in _OLD:
            continue
        met = True
        table = known or DEEPSPEED_KEYS
        if table.find(key) is not None or (not section and key in _SECTIONS) or key.startswith(("_", "//", "#")):
            yield passed(job.name)
            continue
        near = _nearest(key, table) if len(key) >= _SHORTEST_NEAR else ""
        plain = key.replace("-", "_")
        if known is None and (not near or plain in _SECTIONS or table.find(plain) is not None):
            # With hyphens it is a key of gpt-neox, which reads files like this one.
            continue
        what = "DeepSpeed stops at start at a key it does not know there" if known else "DeepSpeed ignores it"
        yield failed(
            job.name,
            f"{quoted(claim)} is no key of {section or 'a DeepSpeed configuration'}"
            f"{f'; {near} is probably meant' if near else ''}: {what}.",
            at=claim,
            remedy=f"Write `{near}`."
            if near
            else f"Remove it, or look it up for your version of DeepSpeed ({claim.span.path}).",
            fix=mend(f"rename {key} to {near}", reworded(claim, key, near), safe=False) if near else None,
        )
    if not met:
        yield not_applicable(job.name, "no DeepSpeed configuration is read")


@rule(
    "DSP002",
    "offload-without-its-stage",
    severity=Severity.WARNING,
    evidence=(
        "https://www.deepspeed.ai/docs/config-json/#parameter-offloading",
        "https://github.com/deepspeedai/DeepSpeed/blob/v0.16.9/deepspeed/runtime/zero/offload_config.py",
    ),
)
def offload_without_its_stage(job: Job) -> Iterator[Verdict]:
    """Something is to be kept in host memory that the chosen ZeRO stage does not split off.

    What it checks:
        `offload_param` has a device and the stage is below 3, or `offload_optimizer` has one and the stage is 0.

    Why it matters:
        The section has no effect, or DeepSpeed stops: the memory it was to save is taken on the GPU.

    Example:
        `"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}`.

    Fix:
        `"stage": 3` to offload parameters, 1 to 3 to offload optimizer states; or remove the section.

    Known limits:
        Which of both is meant is for the writer to say.

    Evidence:
        DeepSpeed documentation and offload_config.py ("Valid only with stage 3").
    """
    met = False
    seen: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        for quantity, least, what in (
            ("offload_param_device", 3, "parameters"),
            ("offload_optimizer_device", 1, "optimizer states"),
        ):
            devices = _of_deepspeed(job, quantity, scope)
            if not devices or not all(text in ("cpu", "nvme") for text in texts(job_value(devices)) or ("",)):
                continue
            met = True
            stages = _of_deepspeed(job, "zero_stage", scope)
            found = numbers(job_value(stages)) if stages else (0,)
            open_end = undecided(subject, (*devices, *stages), launch)
            key = (devices[0].span.path, devices[0].span.line)
            if open_end is not None:
                yield open_end
            elif found and max(found) < least and key not in seen:
                seen.add(key)
                shown = placed(stages[0]) if stages else "no stage at all, which is stage 0,"
                yield failed(
                    subject,
                    f"{quoted(devices[0])} is to keep {what} in host memory, but {shown} does not split {what} off:"
                    f" stage {least if least == 3 else '1 to 3'} does.",
                    at=devices[0],
                    also=tuple((c, "ZeRO stage") for c in stages[:1]),
                    remedy=f'Write `"stage": {max(least, 2)}`, or remove the section.',
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "DeepSpeed is told to offload nothing")


def _of_deepspeed(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source == "deepspeed")


@rule(
    "DSP003",
    "zero-stage-beside-pipeline",
    severity=Severity.ERROR,
    evidence=(
        "https://github.com/deepspeedai/DeepSpeed/blob/v0.16.9/deepspeed/runtime/pipe/engine.py",
        "https://www.deepspeed.ai/docs/config-json/",
    ),
)
def zero_stage_beside_pipeline(job: Job) -> Iterator[Verdict]:
    """ZeRO stage 2 or 3 is asked for together with DeepSpeed's pipeline parallelism.

    What it checks:
        In one gpt-neox configuration, or one launch of Megatron-DeepSpeed, that ZeRO's stage is 0 or 1 where there
        is more than one pipeline stage.

    Why it matters:
        DeepSpeed's pipeline engine asserts it at start: gradients that are split cannot be accumulated over the
        micro-batches of a pipeline.

    Example:
        `"pipe_parallel_size": 4` and `"zero_optimization": {"stage": 2}`.

    Fix:
        `"stage": 1`, or no pipeline.

    Known limits:
        Megatron-DeepSpeed with `--no-pipeline-parallel` is let be. Other frameworks have pipelines of their own.

    Evidence:
        DeepSpeed, runtime/pipe/engine.py ("ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism").
    """
    met = False
    seen: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        stages, pipes = _of_deepspeed(job, "zero_stage", scope), job.setting("pipeline_parallel_size", scope)
        if not stages or not pipes:
            continue
        met = True
        open_end = undecided(subject, (*stages, *pipes), launch)
        zero, several = numbers(job_value(stages)), numbers(job_value(pipes))
        key = (stages[0].span.path, stages[0].span.line)
        if open_end is not None:
            yield open_end
        elif zero and several and min(zero) >= 2 and min(several) > 1 and not _without(launch) and key not in seen:
            seen.add(key)
            yield failed(
                subject,
                f"{quoted(stages[0])} beside {placed(pipes[0])}: DeepSpeed's pipeline takes stage 0 or 1.",
                at=stages[0],
                also=((pipes[0], "pipeline"),),
                remedy='Write `"stage": 1`, or take the pipeline away.',
                severity=None if pipes[0].source in ("gpt-neox", "arguments") else Severity.WARNING,
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "ZeRO and a pipeline do not meet")


def _without(launch: Launch | None) -> bool:
    return launch is not None and "--no-pipeline-parallel" in launch.arguments


@rule(
    "DSP004",
    "deepspeed-key-renamed",
    severity=Severity.WARNING,
    evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.16.9/deepspeed/runtime/zero/config.py",),
)
def deepspeed_key_renamed(job: Job) -> Iterator[Verdict]:
    """A DeepSpeed configuration uses a key that has a new name.

    What it checks:
        The keys of `zero_optimization` that DeepSpeed takes and warns about: cpu_offload and its relatives,
        stage3_gather_fp16_weights_on_model_save. Alone it is only information.

    Why it matters:
        Together with the new key DeepSpeed stops at start; alone it works until it is taken out.

    Example:
        `"zero_optimization": {"stage": 2, "cpu_offload": true}`.

    Fix:
        Take the new name.

    Known limits:
        Only keys that DeepSpeed itself marks so.

    Evidence:
        DeepSpeed, runtime/zero/config.py (deprecated fields) and config_utils.py.
    """
    met = False
    there = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    yield from _open_keys(job)
    for section, key, claim in _keys(job):
        met = True
        new = _RENAMED.get(f"{section}.{key}")
        if new is None:
            continue
        beside = (claim.span.path, f"{section}.{new.split(chr(34))[1] if chr(34) in new else new.strip('`')}") in there
        yield failed(
            job.name,
            f"{quoted(claim)} is an old name"
            + (f", and {new} stands beside it: DeepSpeed stops at both." if beside else f": it is now {new}."),
            at=claim,
            remedy=f"Write {new}." if not beside else f"Remove {quoted(claim)}.",
            severity=None if beside else Severity.INFO,
        )
    yield passed(job.name) if met else not_applicable(job.name, "no DeepSpeed configuration is read")


@rule(
    "DSP005",
    "nvme-offload-without-path",
    severity=Severity.WARNING,
    evidence=(
        "https://www.deepspeed.ai/docs/config-json/#optimizer-offloading",
        "https://github.com/deepspeedai/DeepSpeed/blob/v0.16.9/deepspeed/runtime/zero/stage3.py",
    ),
)
def nvme_offload_without_path(job: Job) -> Iterator[Verdict]:
    """Parameters or optimizer states are to lie on NVMe, and nothing says where.

    What it checks:
        A section of ZeRO stage 3 that offloads to `nvme` has an `nvme_path`, or a list of them for the local ranks.

    Why it matters:
        DeepSpeed joins the path to a folder of its own when it sets the engine up, and stops there with a TypeError
        in every rank, once the model was built.

    Example:
        `"offload_optimizer": {"device": "nvme"}`.

    Fix:
        `"nvme_path": "/local_nvme"`, a disk of the node itself.

    Known limits:
        Below stage 3 the optimizer is offloaded to host memory whatever is said, and nothing is reported.

    Evidence:
        DeepSpeed documentation, offloading; runtime/zero/stage3.py (_configure_tensor_swapping).
    """
    met = False
    there = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    seen: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        for quantity, section in (
            ("offload_optimizer_device", "offload_optimizer"),
            ("offload_param_device", "offload_param"),
        ):
            devices = _of_deepspeed(job, quantity, scope)
            if not devices or "nvme" not in (texts(job_value(devices)) or ("nvme",)):
                continue
            met = True
            stages = _of_deepspeed(job, "zero_stage", scope)
            open_end = undecided(subject, (*devices, *stages), launch)
            names = {f"zero_optimization.{section}.{key}" for key in ("nvme_path", "nvme_path_per_local_rank")}
            key = (devices[0].span.path, devices[0].span.line)
            if open_end is not None:
                yield open_end
            elif any((devices[0].span.path, name) in there for name in names) or 3 not in numbers(job_value(stages)):
                yield passed(subject)
            elif key not in seen and any(claim.span.path == key[0] for claim in job.about("deepspeed_key")):
                seen.add(key)
                yield failed(
                    subject,
                    f"{quoted(devices[0])} names no place: {section} has no `nvme_path`, and DeepSpeed stops in every"
                    " rank.",
                    at=devices[0],
                    remedy='Add `"nvme_path"` with a folder on a local disk of each node.',
                )
    if not met:
        yield not_applicable(job.name, "nothing is offloaded to NVMe")
