"""Accelerate configurations: keys and values that Accelerate rejects, misreads or ignores, and files of several
machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import is_loopback
from preflight._util.sequences import join_some
from preflight.model.findings import Fix, Severity
from preflight.model.job import Claim, Job, Strength, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    not_applicable,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import placed, quoted, where
from preflight.sources.tables import load_table
from preflight_rules.launch.accelerate import Setup, setups, several
from preflight_rules.rendezvous.variables import closest
from preflight_rules.settings.tables import in_range, pinned

#: Read, converted and dropped before the keys are checked (config_args.py, process_config).
_CONVERTED = frozenset({"fp16", "dynamo_backend"})
#: What Accelerate puts before a key of a section that lacks it (launch.py, `_validate_launch_command`).
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_MAX_SLIPS = 2
_MIN_LENGTH = 6
#: Keys beside deepspeed_config_file that stop the launch (utils/dataclasses.py, `_deepspeed_config_checks`, 1.15).
_BESIDE_FILE = frozenset(
    [
        *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
        *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
    ]
)


@rule(
    "ACC002", "accelerate-unknown-key", severity=Severity.ERROR, fix="unsafe", otherwise="no Accelerate configuration"
)
def accelerate_unknown_key(job: Job) -> Iterator[Verdict]:
    """A configuration of Accelerate holds a key that Accelerate does not know.

    What it checks: Every key of the file is one that some version of Accelerate has. In its sections only a key that
    looks like a misspelling of a known one is reported.

    Why it matters: Accelerate rejects a file with an unknown key as a whole, and stops. In a section an unknown key is
    silently ignored, and the default stays in force.

    Example: `num_process: 8`, or `fsdp_config: {fsdp_shading_strategy: FULL_SHARD}`.

    Fix: Write the key as Accelerate spells it, or remove it.

    Known limits: A key that only a newer or older version has is accepted. In a section the finding is a warning.
    """
    keys, known = distinct(job.about("accelerate_key")), _known_keys()
    version = pinned(job, "accelerate")
    for claim in keys:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        (name,) = texts(claim.value) or ("",)
        section, _, key = name.rpartition(".")
        if section:
            near = _similar_key_of_section(section, key)
            if near:
                yield _misspelt(claim, key, near, section)
        elif key in known and not _is_gone(key, version):
            yield passed(claim.span.path)
        else:
            near = _similar_key(key, known)
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not a key of Accelerate's configuration: `accelerate launch` rejects the file.",
                at=claim,
                remedy=f"Write {near}." if near else "Remove the key.",
                fix=_renamed(claim, key, near),
            )


def _known_keys() -> frozenset[str]:
    return load_table("accelerate_config").names() | _CONVERTED


def _is_gone(key: str, version: str) -> bool:
    """Whether the release that the job's files pin no longer has the key, or does not have it yet."""
    row = load_table("accelerate_config").find(key)
    return (
        bool(version) and row is not None and key not in _CONVERTED and in_range(version, row.since, row.until) is False
    )


def _misspelt(claim: Claim, key: str, near: str, section: str) -> Verdict:
    return failed(
        claim.span.path,
        f"`{key}` in {section} is not a key that Accelerate reads, and is ignored: {near} keeps its default.",
        at=claim,
        remedy=f"Write {near}.",
        severity=Severity.WARNING,
        fix=_renamed(claim, key, near),
    )


def _renamed(claim: Claim, key: str, near: str) -> Fix | None:
    """Unsafe: the setting then takes effect, and the intended key is a guess."""
    return make_fix(f"rename {key} to {near}", replace_text(claim, key, near), safe=False) if near else None


def _similar_key_of_section(section: str, key: str) -> str:
    """The known option that a key of a section probably misspells."""
    prefix = _PREFIXES.get(section, "")
    full = key if not prefix or key.startswith(prefix.rstrip("_")) else prefix + key
    options = load_table("accelerate_launch").names()
    if full in options or (section == "deepspeed_config" and key in _known_keys()):
        return ""
    return _similar_key(full, options)


def _similar_key(key: str, known: frozenset[str]) -> str:
    return closest(key, known, _MAX_SLIPS) if len(key) >= _MIN_LENGTH else ""


@rule(
    "ACC004",
    "accelerate-keys-beside-deepspeed-file",
    severity=Severity.ERROR,
    otherwise="no Accelerate configuration names a DeepSpeed file",
)
def accelerate_keys_beside_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """A configuration names a DeepSpeed file and repeats settings that belong in that file.

    What it checks: Beside deepspeed_config_file, the configuration has none of the keys that belong in that file:
    zero_stage, gradient_accumulation_steps, gradient_clipping, the offload devices and paths, zero3_save_16bit_model,
    and mixed_precision unless the command line gives it.

    Why it matters: Accelerate stops every rank with "When using `deepspeed_config_file`, the following accelerate
    config variables will be ignored".

    Example: `deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}`.

    Fix: Set them in the DeepSpeed file, and remove the keys.

    Known limits: mixed_precision in a configuration that no launch of the job names is a warning, because
    `--mixed_precision` on the command line lets it pass.
    """
    reported: set[object] = set()
    for setup in setups(job):
        keys = {text: claim for claim in setup.claims("accelerate_key") for text in texts(claim.value)}
        file = keys.get("deepspeed_config.deepspeed_config_file")
        kind = setup.claims("distributed_type")
        if file is None:
            continue
        if not kind or isinstance(kind[0].value, Unresolved):
            yield unknown(setup.subject, "cannot determine whether DeepSpeed is used", at=file)
            continue
        if setup.text("distributed_type") != "DEEPSPEED":
            yield passed(setup.subject)
            continue
        refused = [claim for name, claim in keys.items() if name.removeprefix("deepspeed_config.") in _BESIDE_FILE]
        precision = keys.get("mixed_precision")
        is_flag = any(claim.strength >= Strength.FLAG for claim in setup.claims("mixed_precision"))
        if precision is not None and not is_flag and setup.claims("mixed_precision"):
            refused.append(precision)
        if not refused:
            yield passed(setup.subject)
        elif (file.span, refused[0].span) not in reported:
            reported.add((file.span, refused[0].span))
            yield _keys_beside_finding(setup, file, refused, only_precision=refused == [precision])


def _keys_beside_finding(setup: Setup, file: Claim, refused: list[Claim], *, only_precision: bool) -> Verdict:
    names = ", ".join(f"`{claim.spelling}`" for claim in refused)
    extra = " (or give `--mixed_precision` on the command line instead)" if only_precision else ""
    return failed(
        setup.subject,
        f"{names} beside `{file.spelling}` ({where(file)}): Accelerate stops, because these settings must be in the "
        "DeepSpeed file only.",
        at=refused[0],
        also=((file, "the DeepSpeed file is named here"), *((claim, "too") for claim in refused[1:8])),
        remedy=f"Remove {names} and set it in the DeepSpeed file{extra}.",
        severity=Severity.WARNING if only_precision and setup.launch is None else None,
    )


#: `mixed_precision: no` and `gpu_ids: 0` as YAML reads them: false, and a number.
_FALSE = re.compile(r"[\"']?mixed_precision[\"']?\s*:\s*(?:no|No|NO|off|Off|OFF|false|False|FALSE)")
_NUMBER = re.compile(r"[\"']?gpu_ids[\"']?\s*:\s*\d+")


@rule(
    "ACC005",
    "accelerate-value-needs-quotation-marks",
    severity=Severity.ERROR,
    fix="safe",
    otherwise="no Accelerate configuration sets a precision or GPUs",
)
def accelerate_value_needs_quotation_marks(job: Job) -> Iterator[Verdict]:
    """YAML reads a value of Accelerate's configuration as a type that Accelerate does not expect.

    What it checks: mixed_precision is not a bare `no`, which YAML reads as false, and gpu_ids not a bare number.

    Why it matters: Accelerate expects a string and stops: 'bool' object has no attribute 'lower', 'int' object has no
    attribute 'split'.

    Example: `mixed_precision: no`.

    Fix: Put it in quotation marks: `mixed_precision: 'no'`.

    Known limits: The option on the command line overrides the file's value, and then nothing is reported. In a
    configuration that no launch of the job names it is a warning for that reason. A bare `no` is always a warning:
    versions 0.19 to 0.33 accept it, earlier and later ones stop.
    """
    for setup in setups(job):
        for quantity, key, pattern in (
            ("mixed_precision", "mixed_precision", _FALSE),
            ("env.CUDA_VISIBLE_DEVICES", "gpu_ids", _NUMBER),
        ):
            for claim in setup.claims(quantity):
                if isinstance(claim.value, Unresolved):
                    yield unknown(setup.subject, f"{key}: {claim.value.why}", at=claim)
                elif pattern.fullmatch(claim.spelling):
                    word = claim.spelling.rpartition(":")[2].strip()
                    precision = key == "mixed_precision"
                    kind, versions = ("false", " (from 0.34 on)") if precision else ("a number", "")
                    yield failed(
                        setup.subject,
                        f"{quoted(claim)} is {kind} in YAML, but Accelerate expects text and stops{versions}.",
                        at=claim,
                        remedy=f"Write {key}: '{word}'.",
                        # Safe: every version that accepts the value reads the quoted word the same way.
                        fix=make_fix(f"quote {word}", replace_text(claim, word, f"'{word}'"), safe=True),
                        severity=Severity.WARNING if setup.launch is None or precision else None,
                    )
                else:
                    yield passed(setup.subject)


@rule(
    "ACC007",
    "precision-differs-from-deepspeed",
    severity=Severity.ERROR,
    otherwise="no launch sets a precision in addition to DeepSpeed's",
)
def precision_differs_from_deepspeed(job: Job) -> Iterator[Verdict]:
    """The launch requests fp16 and the DeepSpeed file bf16, or the other way round.

    What it checks: With mixed_precision (or the trainer's `--fp16`, `--bf16`) at fp16 the DeepSpeed configuration does
    not enable bf16, and the other way round.

    Why it matters: Accelerate stops: "`--mixed_precision` arg cannot be set to `bf16` when `fp16` is set in the
    DeepSpeed config file". Hugging Face's trainer stops likewise.

    Example: `accelerate launch --mixed_precision bf16 --deepspeed_config_file ds.json ...` with `"fp16": {"enabled":
    true}` in ds.json.

    Fix: Write `"enabled": "auto"` in the DeepSpeed file, or the same precision in both.

    Known limits: What a script computes for itself is not seen.
    """
    scopes = [(launch.id, launch.scope, launch) for launch in job.launches]
    for subject, scope, launch in scopes:
        for chosen, other in (("fp16", "bf16"), ("bf16", "fp16")):
            enabled = [c for c in job.setting(f"{other}_enabled", scope) if c.source == "deepspeed"]
            is_flag = [c for c in job.setting("mixed_precision", scope) if c.source != "deepspeed"]
            if not enabled or not is_flag:
                continue
            for claim in is_flag:
                if isinstance(claim.value, Unresolved) or any(isinstance(c.value, Unresolved) for c in enabled):
                    yield unknown(subject, f"{quoted(claim)} or {quoted(enabled[0])} is not known", at=claim)
                elif claim.alternatives == (chosen,) and all(c.alternatives == (True,) for c in enabled):
                    yield failed(
                        subject,
                        f"{quoted(claim)} requests {chosen}, but {quoted(enabled[0])} ({where(enabled[0])}) enables"
                        f" {other} in DeepSpeed: the launch stops.",
                        at=claim,
                        also=((enabled[0], f"enables {other}"),),
                        remedy=f'Write `"enabled": "auto"` for {other} in {enabled[0].span.path}, or request {other}.',
                    )
                else:
                    yield passed(launch.id)


@rule("ACC003", "accelerate-machines-disagree", severity=Severity.ERROR, profile="default")
def accelerate_machines_disagree(job: Job) -> Iterator[Verdict]:
    """The Accelerate configurations for the machines of one job disagree.

    What it checks: Where several configurations (or launch lines) of Accelerate are for the machines of one job:
    num_processes, num_machines and the rendezvous address are the same in all, each machine_rank occurs once, and
    gpu_ids lists equally many GPUs on each. In any of them machine_rank is below num_machines.

    Why it matters: Every machine starts num_processes // num_machines of what its own file says and builds a world of
    that size. With two different sizes some ranks wait for ranks that do not exist.

    Example: `num_processes: 7` in sv1.yaml and `num_processes: 2` in sv2.yaml.

    Fix: Keep one file and give `--machine_rank` on the command line.

    Known limits: Files that were not named together are treated as those of one job by their names or their rendezvous
    address, which is a guess and gives warnings. gpu_ids may name different GPUs on another machine, but not more or
    fewer.
    """
    found = [setup for setup in setups(job) if _has_machine_rank(setup) and several(setup)]
    alone = [setup for setup in found if setup.launch is None]
    for setup in alone:
        verdict = _in_range(setup)
        if verdict is not None:
            yield verdict
    places = {(setup.path or (setup.launch.span.path if setup.launch else "")) for setup in found}
    if len(found) < 2 or len(places) < len(found):
        if not alone:
            yield not_applicable(job.name, "no two configurations are for the machines of one job")
        return
    yield _ranks(found)
    for quantity, meaning in _EQUAL.items():
        verdict = _equal(found, quantity, meaning)
        if verdict is not None:
            yield verdict


#: RDV004 compares the other settings of launch lines.
_EQUAL = {
    "world_size": "processes over all machines",
    "nodes": "machines",
    "master_addr": "the address of the first machine",
    "master_port": "the port of the first machine",
}


def _has_machine_rank(setup: Setup) -> bool:
    """Whether the setup gives its own machine rank."""
    return any(claim.strength > Strength.DEFAULT for claim in setup.claims("node_rank"))


def _in_range(setup: Setup) -> Verdict | None:
    """For a configuration without a launch; RDV005 reports launch lines."""
    ranks, machines = setup.claims("node_rank"), setup.claims("nodes")
    if undecided_verdict := undecided(setup.subject, (*ranks, *machines)):
        return undecided_verdict
    rank, count = setup.number("node_rank"), setup.number("nodes")
    if rank is None or count is None or 0 <= rank < count:
        return passed(setup.subject)
    return failed(
        setup.subject,
        f"{quoted(ranks[0])} is not a rank of {placed(machines[0])}: machine ranks go from 0 to {count - 1}.",
        at=ranks[0],
        also=((machines[0], f"{count} machines"),),
        remedy=f"Use a machine_rank from 0 to {count - 1}, each once.",
        # The command line may override it.
        severity=Severity.WARNING,
    )


def _ranks(found: Sequence[Setup]) -> Verdict:
    subject = join_some([setup.subject for setup in found], 1)
    claims = [setup.claims("node_rank")[0] for setup in found]
    if undecided_verdict := undecided(subject, claims):
        return undecided_verdict
    seen: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in seen and found[0].launch is None:
            return failed(
                subject,
                f"{quoted(claim)} is also in {where(seen[rank])}: two machines of one job claim rank {rank}.",
                at=claim,
                also=((seen[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(found)} machines its own machine_rank, starting at 0.",
            )
        seen[rank] = claim
    return passed(subject)


def _equal(found: Sequence[Setup], quantity: str, meaning: str) -> Verdict | None:
    if found[0].launch is not None and quantity != "world_size":
        return None
    stated = [(setup, setup.claims(quantity)) for setup in found if setup.claims(quantity)]
    if len(stated) < 2:
        return None
    subject = join_some([setup.subject for setup in found], 1)
    (first, ours), *others = stated
    for setup, theirs in others:
        if undecided_verdict := undecided(subject, (*ours, *theirs), quantity=meaning):
            return undecided_verdict
        one, second = _values(ours), _values(theirs)
        if _is_first_machine(first, ours) or _is_first_machine(setup, theirs):
            continue
        if one and second and not one & second:
            devices = _devices(first), _devices(setup)
            return failed(
                subject,
                f"{quoted(ours[0])} here and {quoted(theirs[0])} in {where(theirs[0])} differ in {meaning},"
                " which must be the same on every machine of one job." + _device_text(*devices),
                at=ours[0],
                also=(
                    (theirs[0], "the other machine"),
                    *((c, "its GPUs") for c in devices if c is not None),
                ),
                remedy=f"Set {meaning} to the same value on every machine"
                + ("; each machine starts num_processes // num_machines." if quantity == "world_size" else "."),
            )
    return passed(subject)


def _values(claims: Sequence[Claim]) -> set[object]:
    value = job_value(claims)
    return set(numbers(value) or texts(value))


def _is_first_machine(setup: Setup, claims: Sequence[Claim]) -> bool:
    """Whether this is machine 0 with a loopback address, which is fine: its store listens on all addresses."""
    return setup.number("node_rank") == 0 and any(is_loopback(text) for c in claims for text in texts(c.value))


def _devices(setup: Setup) -> Claim | None:
    return next(iter(setup.claims("env.CUDA_VISIBLE_DEVICES")), None)


def _device_text(first: Claim | None, second: Claim | None) -> str:
    if first is None or second is None:
        return ""
    sizes = [len([n for t in texts(c.value) for n in t.split(",") if n.strip()]) for c in (first, second)]
    if sizes[0] == sizes[1]:
        return ""
    return f" The machines list {sizes[0]} and {sizes[1]} GPUs; accelerate starts the same number of processes on each."
