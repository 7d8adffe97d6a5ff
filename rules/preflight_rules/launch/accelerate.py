"""`accelerate launch`: its options, processes, machines and rendezvous, and its configuration files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from preflight._util.hostnames import is_loopback
from preflight._util.sequences import join_some
from preflight.model.findings import Fix, Severity
from preflight.model.job import WHOLE_JOB, Claim, Job, Launch, Relation, Strength, Unresolved, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import known_number, known_text, numbers, texts
from preflight.plugins.authoring import (
    Question,
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
from preflight.plugins.claim_text import counted, placed, quoted, where
from preflight.sources.tables import load_table
from preflight_rules.launch.world import counts_one_machine, gpus
from preflight_rules.rendezvous.variables import closest
from preflight_rules.settings.tables import may_have, pinned

_SOURCE = "accelerate"
#: The rendezvous backends of torchrun (torch/distributed/elastic/rendezvous/registry.py, torch 2.13).
_BACKENDS = frozenset({"static", "c10d", "etcd", "etcd-v2"})


class Setup(NamedTuple):
    """Accelerate's settings for one launch, or from one configuration that no launch of the job names."""

    job: Job
    subject: str
    launch: Launch | None
    path: str = ""

    def claims(self, quantity: str) -> tuple[Claim, ...]:
        """Return Accelerate's own effective claims about a quantity."""
        scope = self.launch.scope if self.launch is not None else WHOLE_JOB
        return strongest(
            claim
            for claim in self.job.about(quantity, scope)
            if claim.source == _SOURCE and (not self.path or claim.span.path == self.path)
        )

    def number(self, quantity: str) -> int | None:
        """Return the number of a quantity; None if it has no number, several numbers, or an unknown number."""
        return known_number(job_value(self.claims(quantity))) if self.claims(quantity) else None

    def text(self, quantity: str) -> str:
        """Return the string of a quantity; empty if it has no string, several strings, or an unknown string."""
        return (known_text(job_value(self.claims(quantity))) if self.claims(quantity) else None) or ""


def setups(job: Job) -> tuple[Setup, ...]:
    """Return the setup of every launch by Accelerate; without such launches, of every Accelerate configuration."""
    launches = [
        launch
        for launch in job.launches
        if any(claim.source == _SOURCE for claim in job.about("world_size", launch.scope))
        or any(claim.source == _SOURCE for claim in job.about("nodes", launch.scope))
        or any(claim.source == _SOURCE for claim in job.about("accelerate_key", launch.scope))
        or launch.launcher == _SOURCE
    ]
    if launches:
        return tuple(Setup(job, launch.id, launch) for launch in launches)
    paths = dict.fromkeys(claim.span.path for claim in job.about("accelerate_key") if not claim.scope.launch)
    return tuple(Setup(job, path, None, path) for path in paths)


def _setups_with(
    *quantities: str, where: Callable[[Setup], bool] = lambda setup: True
) -> Callable[[Job], Iterator[Question[Setup]]]:
    """Return a function that yields a question about each setup that has claims about all `quantities`."""

    def setup_questions(job: Job) -> Iterator[Question[Setup]]:
        for setup in setups(job):
            claims = [setup.claims(quantity) for quantity in quantities]
            if all(claims) and where(setup):
                yield Question(setup.subject, tuple(itertools.chain(*claims)), setup.launch, of=setup)

    return setup_questions


@rule(
    "ACC001",
    "accelerate-processes-counted-per-machine",
    severity=Severity.ERROR,
    otherwise="no Accelerate launch sets both its number of processes and its number of machines",
    each=_setups_with("nodes", "world_size"),
)
def accelerate_processes_counted_per_machine(question: Question[Setup]) -> Verdict | None:
    """Accelerate's num_processes is too small, or not divisible by num_machines.

    What it checks: num_processes is the total for all machines. For several machines it is at least num_machines, is
    divisible by it, and is not just the number of GPUs of a single machine. In a configuration that no launch names,
    each machine starts no more processes than gpu_ids has GPUs.

    Why it matters: Each machine starts num_processes // num_machines: a number meant for one machine leaves most GPUs
    idle, a number below num_machines starts nothing at all, and a remainder is never started.

    Example: `--num_machines 4 --num_processes 8` on machines with 8 GPUs: 2 processes on each.

    Fix: Give the total: GPUs of a machine times machines.

    Known limits: The number of GPUs comes from Slurm's options, CUDA_VISIBLE_DEVICES, gpu_ids, or a script that tests
    it (`test $(nvidia-smi -L | wc -l) -eq 8`). Only a launch that would start nothing is an error; in a configuration
    that no launch names it is a warning, because the command line may override it.
    """
    setup = question.of
    world, machines = setup.claims("world_size"), setup.claims("nodes")
    total, count = setup.number("world_size"), setup.number("nodes")
    if total is None or count is None:
        return unknown(question.subject, f"{quoted(world[0])} or {quoted(machines[0])} has several values", at=world[0])
    if _differs_from_others(setup):
        return None
    if count < 2:
        machine_gpus = _machine_gpus(setup) if setup.launch is None else None
        is_too_many = machine_gpus is not None and total > machine_gpus[1]
        return (
            _gpu_count_verdict(setup, world[0], machine_gpus, total)
            if is_too_many and machine_gpus is not None
            else None
        )
    return _total_finding(setup, world[0], machines[0], total, count)


def _differs_from_others(setup: Setup) -> bool:
    """Return whether the files of several machines give different numbers, which ACC003 reports."""
    if setup.launch is not None:
        return False
    return len({other.number("world_size") for other in setups(setup.job)}) > 1


def _total_finding(setup: Setup, world: Claim, machines: Claim, total: int, count: int) -> Verdict:
    per_machine, remainder = divmod(total, count)
    statement = f"{quoted(world)} is the total for all {count} machines ({quoted(machines)})"
    also = ((machines, f"{count} machines"),)
    machine_gpus = _machine_gpus(setup)
    device_count = machine_gpus[1] if machine_gpus is not None else max(total, 1)
    remedy = f"Set the total for all machines: {device_count * count}, for {device_count} on each."
    if per_machine < 1:
        return failed(
            setup.subject,
            f"{statement}, so accelerate starts {total} // {count} = 0 processes on each.",
            at=world,
            also=also,
            remedy=remedy,
            severity=Severity.WARNING if setup.launch is None else None,
        )
    if machine_gpus is not None and counts_one_machine(total, count, machine_gpus[1]):
        return failed(
            setup.subject,
            f"{statement}, so accelerate starts {per_machine} on each, but {placed(machine_gpus[0])} shows"
            f" {machine_gpus[1]} GPUs on each: this looks like the count of one machine.",
            at=world,
            also=(*also, (machine_gpus[0], f"{machine_gpus[1]} GPUs")),
            remedy=remedy,
            severity=Severity.WARNING,
        )
    if setup.launch is None and machine_gpus is not None and per_machine > machine_gpus[1]:
        return _gpu_count_verdict(setup, world, machine_gpus, per_machine)
    if remainder:
        return failed(
            setup.subject,
            f"{statement} which is not divisible by that number: accelerate starts {per_machine} on each, and "
            f"{counted(remainder, 'process is', 'processes are')} never started.",
            at=world,
            also=also,
            remedy=f"Give a multiple of {count}, such as {per_machine * count} or {(per_machine + 1) * count}.",
            severity=Severity.WARNING,
        )
    return passed(setup.subject)


def _gpu_count_verdict(setup: Setup, world: Claim, machine_gpus: tuple[Claim, int], count: int) -> Verdict:
    """Return the verdict on a configuration that no launch names; GPU001 judges launches."""
    return failed(
        setup.subject,
        f"{quoted(world)} starts {counted(count, 'process', 'processes')} on each machine, but"
        f" {placed(machine_gpus[0])} names {counted(machine_gpus[1], 'GPU')} there.",
        at=world,
        also=((machine_gpus[0], counted(machine_gpus[1], "GPU")),),
        remedy=f"Start {machine_gpus[1]} on each machine, or name more GPUs.",
        severity=Severity.WARNING,
    )


def _machine_gpus(setup: Setup) -> tuple[Claim, int] | None:
    """Return the claim about the GPUs of one machine, and their number; None if unknown."""
    if setup.launch is not None:
        tested = [c for c in setup.job.about("gpus_tested") if c.span.path == setup.launch.span.path]
        visible = gpus(setup.job, setup.launch) or ((tested[0].value, tuple(tested)) if len(tested) == 1 else None)
        counts = numbers(visible[0]) if visible is not None else ()
        return (visible[1][0], counts[0]) if visible is not None and len(counts) == 1 and counts[0] > 0 else None
    for claim in setup.claims("env.CUDA_VISIBLE_DEVICES"):
        names = [name for text in texts(claim.value) for name in text.split(",") if name.strip()]
        return (claim, len(names)) if names else None
    return None


def is_multi_machine(setup: Setup) -> bool:
    """Return whether the setup certainly spans more than one machine."""
    count = setup.number("nodes")
    return count is not None and count > 1


@rule(
    "ACC006",
    "accelerate-rendezvous-back-end-unread",
    severity=Severity.WARNING,
    otherwise="no configuration for several machines names a rendezvous backend",
    each=_setups_with("rendezvous_backend_unread", where=is_multi_machine),
)
def accelerate_rendezvous_back_end_unread(question: Question[Setup]) -> Verdict | None:
    """A configuration names a rendezvous backend that does not exist or is never used.

    What it checks: rdzv_backend in an Accelerate configuration for several machines exists in torchrun, and is `static`
    or repeated on the command line.

    Why it matters: `accelerate launch` takes the backend from its command line, where the default is static, and
    ignores the file: machines that rely on c10d to assign ranks then all need a machine_rank. A name such as `nccl` is
    a communication library; on the command line, torchrun rejects it.

    Example: `rdzv_backend: nccl`.

    Fix: Write `rdzv_backend: static` and give each machine its machine_rank, or pass `--rdzv_backend c10d`.

    Known limits: c10d in the file is only a note, because a job with machine ranks runs just as well.
    """
    setup = question.of
    file_claims = question.claims
    all_claims = setup.claims("rendezvous_backend")
    overrides = [
        claim for claim in all_claims if claim.relation is Relation.SETS and claim.strength > file_claims[0].strength
    ]
    backend = setup.text("rendezvous_backend_unread")
    if backend in ("", "static") or overrides:
        return None
    exists = backend in _BACKENDS
    return failed(
        question.subject,
        f"{quoted(file_claims[0])} is ignored: accelerate uses `static` unless the command line gives"
        + (" --rdzv_backend" + ("." if exists else f", and there is no rendezvous backend {backend!r}.")),
        at=file_claims[0],
        remedy="Write `rdzv_backend: static` and give each machine its machine_rank, or pass"
        " `--rdzv_backend c10d` on the command line.",
        severity=Severity.INFO if exists else None,
    )


def _has_backend(setup: Setup) -> bool:
    is_accelerate = setup.launch is not None and setup.launch.launcher == _SOURCE
    return is_accelerate and bool(setup.claims("accelerate_key")) and bool(setup.claims("rendezvous_backend"))


@rule(
    "ACC008",
    "accelerate-main-process-missing",
    severity=Severity.ERROR,
    otherwise="no Accelerate launch has a known configuration",
    each=_setups_with("nodes", where=_has_backend),
)
def accelerate_main_process_missing(question: Question[Setup]) -> Verdict | None:
    """A launch over several machines has no rendezvous address.

    What it checks: A launch whose options and configuration file are both known and that spans several machines is
    given main_process_ip.

    Why it matters: Accelerate hands torchrun the endpoint `None:29500`, which no machine can resolve.

    Example: `accelerate launch --config_file fsdp.yaml --num_machines 2 train.py` with no main_process_ip in fsdp.yaml.

    Fix: Give `--main_process_ip`, the address of the first machine, on every machine.

    Known limits: Without --config_file the file in the user's cache may name the address, so nothing is reported.
    DeepSpeed's own launcher finds the address by itself.
    """
    setup, count = question.of, question.of.number("nodes")
    if setup.launch is None or count is None or count < 2 or setup.claims("master_addr"):
        return None
    if SUBMISSION in setup.launch.wrappers:
        return unknown(setup.subject, "the program that runs this command line may add the address", at=setup.launch)
    claim = distinct(question.claims)[0]
    return failed(
        question.subject,
        f"{quoted(claim)} spans {count} machines, but neither the command line nor the configuration"
        " gives main_process_ip: accelerate uses `None` as the address.",
        at=setup.launch,
        also=((claim, f"{count} machines"),),
        remedy="Pass --main_process_ip (the address of the first machine) and --main_process_port.",
    )


@rule(
    "ACC009",
    "accelerate-options-exclude-each-other",
    severity=Severity.ERROR,
    otherwise="no Accelerate launch has an option such as --multi_gpu",
    each=_setups_with("distributed_type"),
)
def accelerate_options_exclude_each_other(question: Question[Setup]) -> Verdict | None:
    """`accelerate launch` is given mutually exclusive options.

    What it checks: At most one of --multi_gpu, --use_deepspeed and --use_fsdp; with --multi_gpu at least two processes;
    with distributed_type MULTI_GPU on one machine at least two GPUs in gpu_ids.

    Why it matters: Accelerate stops with a ValueError: "You can only use one of ...", "You need to use at least 2
    processes to use `--multi_gpu`", "Less than two GPU ids were configured".

    Example: `accelerate launch --multi_gpu --use_deepspeed ... train.py`.

    Fix: Keep the intended one: `--use_deepspeed` and `--use_fsdp` already use several GPUs.

    Known limits: gpu_ids is only checked together with a configuration that sets MULTI_GPU. In a configuration that no
    launch names the finding is a warning.
    """
    return _options_verdict(question.of, question.claims)


def _options_verdict(setup: Setup, kinds: tuple[Claim, ...]) -> Verdict:
    first = kinds[0]
    if len({text for claim in kinds for text in texts(claim.value)}) > 1:
        return failed(
            setup.subject,
            f"{quoted(first)} and {quoted(kinds[1])} are mutually exclusive: accelerate stops.",
            at=kinds[1],
            also=((first, "the other"),),
            remedy="Keep one: --use_deepspeed and --use_fsdp already use several GPUs.",
        )
    world = setup.claims("world_size")
    is_flag = first.strength >= Strength.FLAG and first.alternatives == ("MULTI_GPU",)
    total = setup.number("world_size")
    unresolved = undecided(setup.subject, world, setup.launch) if is_flag else None
    if unresolved is not None:
        return unresolved
    if is_flag and total is not None and total < 2 and world[0].strength >= Strength.FLAG:
        return failed(
            setup.subject,
            f"{quoted(first)} needs at least two processes, but {placed(world[0])} requests one: accelerate stops.",
            at=first,
            also=((world[0], "one process"),),
            remedy="Drop --multi_gpu, or start more processes.",
        )
    devices = setup.claims("env.CUDA_VISIBLE_DEVICES")
    # Accelerate splits at commas, so `0,` counts as two GPUs.
    names = [name for claim in devices for text in texts(claim.value) for name in text.split(",")]
    needs_two_gpus = setup.number("nodes") in (None, 1) and first.alternatives == ("MULTI_GPU",) and not is_flag
    if needs_two_gpus and len(devices) == 1 and len(names) == 1:
        return failed(
            setup.subject,
            f"{quoted(devices[0])} names one GPU, but {placed(first)} needs at least two on one machine: accelerate"
            " stops.",
            at=devices[0],
            also=((first, "several GPUs"),),
            remedy="Name two GPUs or more, or write `distributed_type: 'NO'`.",
            severity=Severity.WARNING if setup.launch is None else None,
        )
    return passed(setup.subject)


@rule(
    "ACC010",
    "accelerate-deepspeed-file-without-zero",
    severity=Severity.ERROR,
    otherwise="no launch passes a DeepSpeed file to Accelerate",
)
def accelerate_deepspeed_file_without_zero(job: Job) -> Iterator[Verdict]:
    """A DeepSpeed file given to Accelerate has no `zero_optimization` section.

    What it checks: The file that deepspeed_config_file (option or key) names has zero_optimization.

    Why it matters: Accelerate stops every rank with "Please specify the ZeRO optimization config in the DeepSpeed
    config".

    Example: `--deepspeed_config_file ds.json` with `{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}`.

    Fix: Add `"zero_optimization": {"stage": 2}`; stage 0 disables it.

    Known limits: A file that Hugging Face's trainer gets through its own `--deepspeed` needs no such section.
    """
    read_paths = {file.path for file in job.files if file.kind == "deepspeed"}
    for launch in job.launches:
        for target in _deepspeed_files(job, launch):
            if target not in read_paths:
                continue
            keys = [c for c in job.about("deepspeed_key", launch.scope) if c.span.path == target]
            names = [text for claim in keys for text in texts(claim.value)]
            notes = [note for note in job.notes if note.span.path == target]
            if "zero_optimization" in names:
                yield passed(launch.id)
            elif not keys or notes:
                yield unknown(launch.id, f"{target} could not be read completely")
            else:
                yield failed(
                    launch.id,
                    f"{target} has no `zero_optimization`, which Accelerate requires: every rank stops.",
                    at=keys[0],
                    also=((launch, "started here"),),
                    remedy='Add `"zero_optimization": {"stage": 2}` (stage 0 disables it).',
                )


def _deepspeed_files(job: Job, launch: Launch) -> list[str]:
    """Return the paths of the DeepSpeed files that an option or a configuration of Accelerate names."""
    config_paths = {claim.span.path for claim in job.about("accelerate_key", launch.scope)}
    targets = []
    for reference in job.references:
        if reference.role != "config" or reference.scope != launch.scope:
            continue
        line = reference.span.snippet[: reference.span.end_column]
        if (
            reference.span.path in config_paths
            or "--deepspeed_config_file" in line
            or "--deepspeed-config-file" in line
        ):
            targets.append(reference.target)
    return list(dict.fromkeys(targets))


# Accelerate configurations: keys and values that Accelerate rejects, misreads or ignores, and files of several
# machines.


#: Keys that Accelerate converts and drops before it checks the keys (config_args.py, process_config).
_CONVERTED_KEYS = frozenset({"fp16", "dynamo_backend"})
#: The prefix that Accelerate adds to a key of a section (launch.py, `_validate_launch_command`).
_SECTION_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
_MAX_EDITS = 2
_MIN_LENGTH = 6
#: Keys beside deepspeed_config_file that stop the launch (utils/dataclasses.py, `_deepspeed_config_checks`, 1.15).
_KEYS_FORBIDDEN_WITH_FILE = frozenset(
    [
        *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
        *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
    ]
)


@rule(
    "ACC002", "accelerate-unknown-key", severity=Severity.ERROR, fix="unsafe", otherwise="no Accelerate configuration"
)
def accelerate_unknown_key(job: Job) -> Iterator[Verdict]:
    """An Accelerate configuration has a key that Accelerate does not know.

    What it checks: Every key of the file is one that some version of Accelerate has. In its sections only a key that
    looks like a misspelling of a known one is reported.

    Why it matters: Accelerate rejects a file with an unknown key as a whole, and stops. In a section an unknown key is
    silently ignored, and the default stays effective.

    Example: `num_process: 8`, or `fsdp_config: {fsdp_shading_strategy: FULL_SHARD}`.

    Fix: Write the key as Accelerate spells it, or remove it.

    Known limits: A key that exists only in a newer or older version is accepted. In a section, the finding is a
    warning.
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
            similar = _similar_key_of_section(section, key)
            if similar:
                yield _misspelt_finding(claim, key, similar, section)
        elif key in known and not _lacks_key(key, version):
            yield passed(claim.span.path)
        else:
            similar = _similar_key(key, known)
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not a key of Accelerate's configuration: `accelerate launch` rejects the file.",
                at=claim,
                remedy=f"Write {similar}." if similar else "Remove the key.",
                fix=_rename_fix(claim, key, similar),
            )


def _known_keys() -> frozenset[str]:
    return load_table("accelerate_config").names() | _CONVERTED_KEYS


def _lacks_key(key: str, version: str) -> bool:
    """Return whether the release that the job's files pin no longer has the key, or does not have it yet."""
    table = load_table("accelerate_config")
    row = table.find(key)
    return row is not None and key not in _CONVERTED_KEYS and not may_have(table, row, version)


def _misspelt_finding(claim: Claim, key: str, similar: str, section: str) -> Verdict:
    return failed(
        claim.span.path,
        f"`{key}` in {section} is not a key of Accelerate and is ignored: {similar} keeps its default.",
        at=claim,
        remedy=f"Write {similar}.",
        severity=Severity.WARNING,
        fix=_rename_fix(claim, key, similar),
    )


def _rename_fix(claim: Claim, key: str, similar: str) -> Fix | None:
    """Return a fix that renames the key. It is unsafe, because the setting takes effect and the new name is a guess."""
    return make_fix(f"rename {key} to {similar}", replace_text(claim, key, similar), safe=False) if similar else None


def _similar_key_of_section(section: str, key: str) -> str:
    """Return the known option that a key in a section probably misspells; empty if the key is known or resembles
    none.
    """
    prefix = _SECTION_PREFIXES.get(section, "")
    option = key if not prefix or key.startswith(prefix.rstrip("_")) else prefix + key
    options = load_table("accelerate_launch").names()
    if option in options or (section == "deepspeed_config" and key in _known_keys()):
        return ""
    return _similar_key(option, options)


def _similar_key(key: str, known: frozenset[str]) -> str:
    return closest(key, known, _MAX_EDITS) if len(key) >= _MIN_LENGTH else ""


@rule(
    "ACC004",
    "accelerate-keys-beside-deepspeed-file",
    severity=Severity.ERROR,
    otherwise="no Accelerate configuration names a DeepSpeed file",
)
def accelerate_keys_beside_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """A configuration names a DeepSpeed file and repeats settings that belong in that file.

    What it checks: With deepspeed_config_file, the configuration has none of the keys that belong in that file:
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
        forbidden = [
            claim for name, claim in keys.items() if name.removeprefix("deepspeed_config.") in _KEYS_FORBIDDEN_WITH_FILE
        ]
        precision = keys.get("mixed_precision")
        is_flag = any(claim.strength >= Strength.FLAG for claim in setup.claims("mixed_precision"))
        if precision is not None and not is_flag and setup.claims("mixed_precision"):
            forbidden.append(precision)
        if not forbidden:
            yield passed(setup.subject)
        elif (file.span, forbidden[0].span) not in reported:
            reported.add((file.span, forbidden[0].span))
            yield _keys_beside_finding(setup, file, forbidden, only_precision=forbidden == [precision])


def _keys_beside_finding(setup: Setup, file: Claim, forbidden: list[Claim], *, only_precision: bool) -> Verdict:
    names = ", ".join(f"`{claim.spelling}`" for claim in forbidden)
    extra = " (or give `--mixed_precision` on the command line instead)" if only_precision else ""
    return failed(
        setup.subject,
        f"{names} together with `{file.spelling}` ({where(file)}): Accelerate stops, because these settings may only "
        "be in the DeepSpeed file.",
        at=forbidden[0],
        also=((file, "names the DeepSpeed file"), *((claim, "the same") for claim in forbidden[1:8])),
        remedy=f"Remove {names} and set it in the DeepSpeed file{extra}.",
        severity=Severity.WARNING if only_precision and setup.launch is None else None,
    )


#: Bare values that YAML does not read as text: `mixed_precision: no` is false, and `gpu_ids: 0` is a number.
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
                    is_precision = key == "mixed_precision"
                    kind, versions = ("false", " (from 0.34 on)") if is_precision else ("a number", "")
                    yield failed(
                        setup.subject,
                        f"{quoted(claim)} is {kind} in YAML, but Accelerate expects a string and stops{versions}.",
                        at=claim,
                        remedy=f"Write {key}: '{word}'.",
                        # Safe: every version that accepts the value reads the quoted word the same way.
                        fix=make_fix(f"quote {word}", replace_text(claim, word, f"'{word}'"), safe=True),
                        severity=Severity.WARNING if setup.launch is None or is_precision else None,
                    )
                else:
                    yield passed(setup.subject)


@rule(
    "ACC007",
    "precision-differs-from-deepspeed",
    severity=Severity.ERROR,
    otherwise="no launch sets a precision besides DeepSpeed's",
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

    Known limits: Values that a script computes are not seen.
    """
    scopes = [(launch.id, launch.scope, launch) for launch in job.launches]
    for subject, scope, launch in scopes:
        for precision, other in (("fp16", "bf16"), ("bf16", "fp16")):
            enabled = [c for c in job.setting(f"{other}_enabled", scope) if c.source == "deepspeed"]
            precision_claims = [c for c in job.setting("mixed_precision", scope) if c.source != "deepspeed"]
            if not enabled or not precision_claims:
                continue
            for claim in precision_claims:
                if isinstance(claim.value, Unresolved) or any(isinstance(c.value, Unresolved) for c in enabled):
                    yield unknown(subject, f"{quoted(claim)} or {quoted(enabled[0])} is unknown", at=claim)
                elif claim.alternatives == (precision,) and all(c.alternatives == (True,) for c in enabled):
                    yield failed(
                        subject,
                        f"{quoted(claim)} requests {precision}, but {quoted(enabled[0])} ({where(enabled[0])}) enables"
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

    What it checks: If several Accelerate configurations (or launch lines) belong to the machines of one job:
    num_processes, num_machines and the rendezvous address are the same in all, each machine_rank occurs once, and
    gpu_ids lists the same number of GPUs on each. In any of them machine_rank is below num_machines.

    Why it matters: Every machine starts num_processes // num_machines processes from its own file and builds a world of
    that size. With two different sizes, some ranks wait for ranks that do not exist.

    Example: `num_processes: 7` in sv1.yaml and `num_processes: 2` in sv2.yaml.

    Fix: Keep one file and pass `--machine_rank` on the command line.

    Known limits: Files that were not named together are assigned to one job by their names or their rendezvous address,
    a guess that gives only warnings. gpu_ids may name different GPUs on another machine, but not more or fewer.
    """
    machines = [setup for setup in setups(job) if _has_machine_rank(setup) and is_multi_machine(setup)]
    unlaunched = [setup for setup in machines if setup.launch is None]
    for setup in unlaunched:
        verdict = _rank_range_verdict(setup)
        if verdict is not None:
            yield verdict
    paths = {(setup.path or (setup.launch.span.path if setup.launch else "")) for setup in machines}
    if len(machines) < 2 or len(paths) < len(machines):
        if not unlaunched:
            yield not_applicable(job.name, "no two configurations are for the machines of one job")
        return
    yield _ranks_verdict(machines)
    for quantity, meaning in _COMMON_SETTINGS.items():
        verdict = _equality_verdict(machines, quantity, meaning)
        if verdict is not None:
            yield verdict


#: RDV004 compares the other settings of launch lines.
_COMMON_SETTINGS = {
    "world_size": "processes on all machines",
    "nodes": "machines",
    "master_addr": "the address of the first machine",
    "master_port": "the port of the first machine",
}


def _has_machine_rank(setup: Setup) -> bool:
    return any(claim.strength > Strength.DEFAULT for claim in setup.claims("node_rank"))


def _rank_range_verdict(setup: Setup) -> Verdict | None:
    """Return the verdict on the machine rank of a configuration that no launch names; RDV005 judges launch lines."""
    ranks, machines = setup.claims("node_rank"), setup.claims("nodes")
    if undecided_verdict := undecided(setup.subject, (*ranks, *machines)):
        return undecided_verdict
    rank, count = setup.number("node_rank"), setup.number("nodes")
    if rank is None or count is None or 0 <= rank < count:
        return passed(setup.subject)
    return failed(
        setup.subject,
        f"{quoted(ranks[0])} is not a rank of {placed(machines[0])}: machine ranks are 0 to {count - 1}.",
        at=ranks[0],
        also=((machines[0], f"{count} machines"),),
        remedy=f"Use a machine_rank from 0 to {count - 1}, each once.",
        # The command line may override the file.
        severity=Severity.WARNING,
    )


def _ranks_verdict(machines: Sequence[Setup]) -> Verdict:
    subject = join_some([setup.subject for setup in machines], 1)
    claims = [setup.claims("node_rank")[0] for setup in machines]
    if undecided_verdict := undecided(subject, claims):
        return undecided_verdict
    claim_by_rank: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in claim_by_rank and machines[0].launch is None:
            return failed(
                subject,
                f"{quoted(claim)} is also in {where(claim_by_rank[rank])}: two machines of one job claim rank {rank}.",
                at=claim,
                also=((claim_by_rank[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(machines)} machines its own machine_rank, starting at 0.",
            )
        claim_by_rank[rank] = claim
    return passed(subject)


def _equality_verdict(machines: Sequence[Setup], quantity: str, meaning: str) -> Verdict | None:
    if machines[0].launch is not None and quantity != "world_size":
        return None
    settings = [(setup, setup.claims(quantity)) for setup in machines if setup.claims(quantity)]
    if len(settings) < 2:
        return None
    subject = join_some([setup.subject for setup in machines], 1)
    (first, claims), *others = settings
    for setup, other_claims in others:
        if undecided_verdict := undecided(subject, (*claims, *other_claims), quantity=meaning):
            return undecided_verdict
        values, other_values = _claimed_values(claims), _claimed_values(other_claims)
        if _is_first_machine(first, claims) or _is_first_machine(setup, other_claims):
            continue
        if values and other_values and not values & other_values:
            devices = _device_claim(first), _device_claim(setup)
            return failed(
                subject,
                f"{quoted(claims[0])} here and {quoted(other_claims[0])} in {where(other_claims[0])} differ in"
                f" {meaning},"
                " which must be the same on every machine of one job." + _device_text(*devices),
                at=claims[0],
                also=((other_claims[0], "the other machine"), *((c, "its GPUs") for c in devices if c is not None)),
                remedy=f"Set {meaning} to the same value on every machine"
                + ("; each machine starts num_processes // num_machines." if quantity == "world_size" else "."),
            )
    return passed(subject)


def _claimed_values(claims: Sequence[Claim]) -> set[object]:
    value = job_value(claims)
    return set(numbers(value) or texts(value))


def _is_first_machine(setup: Setup, claims: Sequence[Claim]) -> bool:
    """Return whether `setup` is machine 0 with a loopback address, which works: its store listens on all addresses."""
    return setup.number("node_rank") == 0 and any(is_loopback(text) for c in claims for text in texts(c.value))


def _device_claim(setup: Setup) -> Claim | None:
    return next(iter(setup.claims("env.CUDA_VISIBLE_DEVICES")), None)


def _device_text(first: Claim | None, second: Claim | None) -> str:
    if first is None or second is None:
        return ""
    gpu_counts = [len([n for t in texts(c.value) for n in t.split(",") if n.strip()]) for c in (first, second)]
    if gpu_counts[0] == gpu_counts[1]:
        return ""
    return (
        f" The machines list {gpu_counts[0]} and {gpu_counts[1]} GPUs; accelerate starts the same number of processes"
        " on each."
    )
