"""What stands in a configuration of Accelerate that its reader refuses, misreads or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Strength, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Fix, Severity
from preflight.tables.accelerate_config import ACCELERATE_CONFIG
from preflight.tables.accelerate_launch import ACCELERATE_LAUNCH
from preflight_rules.meeting.variables import distance
from preflight_rules.reading import distinct, quoted, texts, where
from preflight_rules.starting.accelerate import Setup, setups

#: Read, converted and dropped before the keys are checked (config_args.py, process_config).
_CONVERTED = frozenset({"fp16", "dynamo_backend"})
_KEYS = frozenset(row.dest for row in ACCELERATE_CONFIG.rows) | _CONVERTED
_OPTIONS = frozenset(row.dest for row in ACCELERATE_LAUNCH.rows)
#: What Accelerate puts before a key of a section that lacks it (launch.py, `_validate_launch_command`).
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_MOST_SLIPS = 2
_SHORTEST = 6
#: Keys beside deepspeed_config_file that stop the launch (utils/dataclasses.py, `_deepspeed_config_checks`, 1.15).
_BESIDE_FILE = frozenset(
    [
        "gradient_accumulation_steps",
        "gradient_clipping",
        "zero_stage",
        "offload_optimizer_device",
        "offload_param_device",
        "offload_param_nvme_path",
        "offload_optimizer_nvme_path",
        "zero3_save_16bit_model",
    ]
)


def _keys(job: Job) -> tuple[Claim, ...]:
    return distinct(job.about("accelerate_key"))


@rule(
    "ACC002",
    "accelerate-unknown-key",
    severity=Severity.ERROR,
    fix="unsafe",
    profile="gate",
    evidence=("huggingface/accelerate#1935",),
)
def unknown_key(job: Job) -> Iterator[Verdict]:
    """A configuration of Accelerate holds a key that Accelerate does not know.

    What it checks:
        Every key of the file is one that some version of Accelerate has. In its sections only a key that looks like
        a misspelling of a known one is reported.

    Why it matters:
        Accelerate refuses a file with an unknown key as a whole, and stops. In a section an unknown key is passed
        over without a word, and the default stays in force.

    Example:
        `num_process: 8`, or `fsdp_config: {fsdp_shading_strategy: FULL_SHARD}`.

    Fix:
        Write the key as Accelerate spells it, or take it out.

    Known limits:
        A key that only a newer or older version has is let through. In a section the finding is a warning.

    Evidence:
        huggingface/accelerate#1935 (why unknown keys are refused); the keys of eight versions from 0.15 to 1.15.
    """
    keys = _keys(job)
    for claim in keys:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        (name,) = texts(claim.value) or ("",)
        section, _, key = name.rpartition(".")
        if section:
            near = _near_in_section(section, key)
            if near:
                yield _misspelt(claim, key, near, section)
        elif key in _KEYS:
            yield passed(claim.span.path)
        else:
            near = _near(key, _KEYS)
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is no key of Accelerate's configuration: `accelerate launch` refuses the file.",
                at=claim,
                remedy=f"Write {near}." if near else "Take the key out.",
                fix=_renamed(claim, key, near),
            )
    if not keys:
        yield not_applicable(job.name, "no configuration of Accelerate")


def _misspelt(claim: Claim, key: str, near: str, section: str) -> Verdict:
    return failed(
        claim.span.path,
        f"`{key}` in {section} is nothing that Accelerate reads, and is passed over: {near} keeps its default.",
        at=claim,
        remedy=f"Write {near}.",
        severity=Severity.WARNING,
        fix=_renamed(claim, key, near),
    )


def _renamed(claim: Claim, key: str, near: str) -> Fix | None:
    """Unsafe: from then on the setting has an effect, and which one was meant is a guess."""
    return mend(f"rename {key} to {near}", reworded(claim, key, near), safe=False) if near else None


def _near_in_section(section: str, key: str) -> str:
    """The option that a key of a section is probably a misspelling of."""
    prefix = _PREFIXES.get(section, "")
    full = key if not prefix or key.startswith(prefix.rstrip("_")) else prefix + key
    if full in _OPTIONS or (section == "deepspeed_config" and key in _KEYS):
        return ""
    found = _near(full, _OPTIONS)
    return found if found else ""


def _near(key: str, known: frozenset[str]) -> str:
    if len(key) < _SHORTEST:
        return ""
    best: tuple[int, str] | None = None
    for candidate in sorted(name for name in known if abs(len(name) - len(key)) <= _MOST_SLIPS):
        slips = distance(key, candidate, _MOST_SLIPS)
        if 0 < slips <= _MOST_SLIPS and (best is None or slips < best[0]):
            best = (slips, candidate)
    return best[1] if best is not None else ""


@rule(
    "ACC004",
    "accelerate-keys-beside-deepspeed-file",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("huggingface/accelerate#941", "CarperAI/trlx#316", "yuvalkirstain/PickScore#2"),
)
def keys_beside_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """A configuration names a DeepSpeed file and says the same things itself.

    What it checks:
        Beside deepspeed_config_file, the configuration has none of the keys that belong into that file:
        zero_stage, gradient_accumulation_steps, gradient_clipping, the offload devices and paths,
        zero3_save_16bit_model, and mixed_precision unless the command line gives it.

    Why it matters:
        Accelerate stops every rank with "When using `deepspeed_config_file`, the following accelerate config
        variables will be ignored".

    Example:
        `deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}`.

    Fix:
        Say these things in the DeepSpeed file, and take the keys out.

    Known limits:
        mixed_precision in a configuration that no launch of the job names is a warning, because `--mixed_precision`
        on the command line lets it pass.

    Evidence:
        huggingface/accelerate#941 (introduced), CarperAI/trlx#316, yuvalkirstain/PickScore#2 (met).
    """
    met = False
    reported: set[object] = set()
    for setup in setups(job):
        keys = {text: claim for claim in setup.claims("accelerate_key") for text in texts(claim.value)}
        file = keys.get("deepspeed_config.deepspeed_config_file")
        kind = setup.claims("distributed_type")
        if file is None:
            continue
        met = True
        if not kind or isinstance(kind[0].value, Unresolved):
            yield unknown(setup.subject, "it cannot be told whether DeepSpeed is used", at=file)
            continue
        if setup.text("distributed_type") != "DEEPSPEED":
            yield passed(setup.subject)
            continue
        refused = [claim for name, claim in keys.items() if name.removeprefix("deepspeed_config.") in _BESIDE_FILE]
        precision = keys.get("mixed_precision")
        told = any(claim.strength >= Strength.FLAG for claim in setup.claims("mixed_precision"))
        if precision is not None and not told and setup.claims("mixed_precision"):
            refused.append(precision)
        if not refused:
            yield passed(setup.subject)
        elif (file.span, refused[0].span) not in reported:
            reported.add((file.span, refused[0].span))
            yield _beside(setup, file, refused, only_precision=refused == [precision])
    if not met:
        yield not_applicable(job.name, "no configuration of Accelerate names a DeepSpeed file")


def _beside(setup: Setup, file: Claim, refused: list[Claim], *, only_precision: bool) -> Verdict:
    names = ", ".join(f"`{claim.spelling}`" for claim in refused)
    extra = " (or give `--mixed_precision` on the command line instead)" if only_precision else ""
    return failed(
        setup.subject,
        f"{names} beside `{file.spelling}` ({where(file)}): Accelerate stops, because the DeepSpeed file is the only"
        " place for what it says.",
        at=refused[0],
        also=((file, "the DeepSpeed file is named here"), *((claim, "too") for claim in refused[1:8])),
        remedy=f"Take {names} out and say it in the DeepSpeed file{extra}.",
        severity=Severity.WARNING if only_precision and setup.launch is None else None,
    )


#: `mixed_precision: no` and `gpu_ids: 0` as YAML reads them: false, and a number.
_FALSE = lazy_pattern(r"[\"']?mixed_precision[\"']?\s*:\s*(?:no|No|NO|off|Off|OFF|false|False|FALSE)")
_NUMBER = lazy_pattern(r"[\"']?gpu_ids[\"']?\s*:\s*\d+")


@rule(
    "ACC005",
    "accelerate-value-needs-quotation-marks",
    severity=Severity.ERROR,
    fix="safe",
    profile="gate",
    evidence=("huggingface/accelerate#1386", "Ziems/arbor#156"),
)
def value_needs_quotation_marks(job: Job) -> Iterator[Verdict]:
    """A word in Accelerate's configuration is something else to YAML than to Accelerate.

    What it checks:
        mixed_precision is not a bare `no`, which YAML reads as false, and gpu_ids not a bare number.

    Why it matters:
        Accelerate expects text and stops: 'bool' object has no attribute 'lower', 'int' object has no attribute
        'split'.

    Example:
        `mixed_precision: no`.

    Fix:
        Put it in quotation marks: `mixed_precision: 'no'`.

    Known limits:
        The option on the command line takes the place of the file's value, and then nothing is said. In a
        configuration that no launch of the job names it is a warning for that reason. A bare `no` is always a warning:
        versions 0.19 to 0.33 took it for the word, those before and after stop.

    Evidence:
        huggingface/accelerate#1386 and Ziems/arbor#156 (both with the traceback).
    """
    met = False
    for setup in setups(job):
        for quantity, key, pattern in (
            ("mixed_precision", "mixed_precision", _FALSE),
            ("env.CUDA_VISIBLE_DEVICES", "gpu_ids", _NUMBER),
        ):
            for claim in setup.claims(quantity):
                met = True
                if isinstance(claim.value, Unresolved):
                    yield unknown(setup.subject, f"{key}: {claim.value.why}", at=claim)
                elif pattern.fullmatch(claim.spelling):
                    word = claim.spelling.rpartition(":")[2].strip()
                    precision = key == "mixed_precision"
                    kind, versions = ("false", " (from 0.34 on)") if precision else ("a number", "")
                    yield failed(
                        setup.subject,
                        f"{quoted(claim)} is {kind} to YAML, but text to Accelerate, which stops at it{versions}.",
                        at=claim,
                        remedy=f"Write {key}: '{word}'.",
                        # Safe: it is the same to every version that takes it as it stands.
                        fix=mend(f"put {word} into quotation marks", reworded(claim, word, f"'{word}'"), safe=True),
                        severity=Severity.WARNING if setup.launch is None or precision else None,
                    )
                else:
                    yield passed(setup.subject)
    if not met:
        yield not_applicable(job.name, "no configuration of Accelerate says a precision or GPUs")


@rule(
    "ACC007",
    "precision-differs-from-deepspeed",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://huggingface.co/docs/accelerate/usage_guides/deepspeed",
        "https://huggingface.co/docs/transformers/deepspeed",
    ),
)
def precision_differs_from_deepspeed(job: Job) -> Iterator[Verdict]:
    """The launch asks for one precision and the DeepSpeed file for the other.

    What it checks:
        With mixed_precision (or the trainer's `--fp16`, `--bf16`) at fp16 the DeepSpeed configuration does not
        enable bf16, and the other way round.

    Why it matters:
        Accelerate stops: "`--mixed_precision` arg cannot be set to `bf16` when `fp16` is set in the DeepSpeed config
        file". Hugging Face's trainer stops likewise.

    Example:
        `accelerate launch --mixed_precision bf16 --deepspeed_config_file ds.json ...` with `"fp16": {"enabled":
        true}` in ds.json.

    Fix:
        Write `"enabled": "auto"` in the DeepSpeed file, or the same precision in both.

    Known limits:
        What a script computes for itself is not seen.

    Evidence:
        Accelerate's and transformers' guides to DeepSpeed.
    """
    met = False
    scopes = [(launch.id, launch.scope, launch) for launch in job.launches]
    for subject, scope, launch in scopes:
        for asked, other in (("fp16", "bf16"), ("bf16", "fp16")):
            enabled = [c for c in job.setting(f"{other}_enabled", scope) if c.source == "deepspeed"]
            told = [c for c in job.setting("mixed_precision", scope) if c.source != "deepspeed"]
            if not enabled or not told:
                continue
            met = True
            for claim in told:
                if isinstance(claim.value, Unresolved) or any(isinstance(c.value, Unresolved) for c in enabled):
                    yield unknown(subject, f"{quoted(claim)} or {quoted(enabled[0])} is not known", at=claim)
                elif claim.alternatives == (asked,) and all(c.alternatives == (True,) for c in enabled):
                    yield failed(
                        subject,
                        f"{quoted(claim)} asks for {asked}, but {quoted(enabled[0])} ({where(enabled[0])}) enables"
                        f" {other} in DeepSpeed: the launch stops.",
                        at=claim,
                        also=((enabled[0], f"enables {other}"),),
                        remedy=f'Write `"enabled": "auto"` for {other} in {enabled[0].span.path}, or ask for {other}.',
                    )
                else:
                    yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch says a precision beside DeepSpeed's")
