"""`accelerate launch`: its options and files, processes, machines and the rendezvous."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from preflight.model.findings import Severity
from preflight.model.job import WHOLE_JOB, Claim, Job, Launch, Relation, Strength, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import known_number, known_text, numbers, texts
from preflight.plugins.authoring import Question, Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.launch.gpus import counts_one_machine, gpus

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
        """Accelerate's own claims in force about a quantity."""
        scope = self.launch.scope if self.launch is not None else WHOLE_JOB
        return strongest(
            claim
            for claim in self.job.about(quantity, scope)
            if claim.source == _SOURCE and (not self.path or claim.span.path == self.path)
        )

    def number(self, quantity: str) -> int | None:
        """The single number that a quantity has; None where there is none, several, or an unknown one."""
        return known_number(job_value(self.claims(quantity))) if self.claims(quantity) else None

    def text(self, quantity: str) -> str:
        """The single string that a quantity has; empty where there is none, several, or an unknown one."""
        return (known_text(job_value(self.claims(quantity))) if self.claims(quantity) else None) or ""


def setups(job: Job) -> tuple[Setup, ...]:
    """Every launch by Accelerate; without any, every Accelerate configuration that was found."""
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
    """Ask about each setup that has all of the quantities."""

    def each(job: Job) -> Iterator[Question[Setup]]:
        for setup in setups(job):
            found = [setup.claims(quantity) for quantity in quantities]
            if all(found) and where(setup):
                yield Question(setup.subject, tuple(itertools.chain(*found)), setup.launch, of=setup)

    return each


@rule(
    "ACC001",
    "accelerate-processes-counted-per-machine",
    severity=Severity.ERROR,
    otherwise="no Accelerate launch sets both its number of processes and its number of machines",
    each=_setups_with("nodes", "world_size"),
)
def accelerate_processes_counted_per_machine(question: Question[Setup]) -> Verdict | None:
    """Accelerate's number of processes is too small, or not divisible by its number of machines.

    What it checks: num_processes counts over all machines. For several machines it is at least num_machines, is
    divisible by it, and is not just the number of GPUs of a single machine. In a configuration that no launch names,
    each machine starts no more processes than gpu_ids has GPUs.

    Why it matters: Each machine starts num_processes // num_machines: a number meant for one machine leaves most GPUs
    idle, a number below num_machines starts nothing at all, and a remainder is never started.

    Example: `--num_machines 4 --num_processes 8` on machines with 8 GPUs: 2 processes on each.

    Fix: Give the total: GPUs of a machine times machines.

    Known limits: The number of GPUs is known from Slurm's options, CUDA_VISIBLE_DEVICES or gpu_ids. Only a launch that
    would start nothing is an error; in a configuration that no launch names it is a warning, because the command line
    may override it.
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
        many = machine_gpus is not None and total > machine_gpus[1]
        return _more_than_gpus(setup, world[0], machine_gpus, total) if many and machine_gpus is not None else None
    return _total_finding(setup, world[0], machines[0], total, count)


def _differs_from_others(setup: Setup) -> bool:
    """Whether the files of several machines give different numbers, which ACC003 reports."""
    if setup.launch is not None:
        return False
    return len({other.number("world_size") for other in setups(setup.job)}) > 1


def _total_finding(setup: Setup, world: Claim, machines: Claim, total: int, count: int) -> Verdict:
    each, rest = divmod(total, count)
    stated = f"{quoted(world)} is the total over all {count} machines ({quoted(machines)})"
    also = ((machines, f"{count} machines"),)
    machine_gpus = _machine_gpus(setup)
    wanted = machine_gpus[1] if machine_gpus is not None else max(total, 1)
    remedy = f"Set the total over all machines: {wanted * count} for {wanted} on each."
    if each < 1:
        return failed(
            setup.subject,
            f"{stated}, so accelerate starts {total} // {count} = 0 processes on each.",
            at=world,
            also=also,
            remedy=remedy,
            severity=Severity.WARNING if setup.launch is None else None,
        )
    if machine_gpus is not None and counts_one_machine(total, count, machine_gpus[1]):
        return failed(
            setup.subject,
            f"{stated}, so accelerate starts {each} on each, but {placed(machine_gpus[0])} gives each"
            f" {machine_gpus[1]} GPUs: this looks like the count of one machine.",
            at=world,
            also=(*also, (machine_gpus[0], f"{machine_gpus[1]} GPUs")),
            remedy=remedy,
            severity=Severity.WARNING,
        )
    if setup.launch is None and machine_gpus is not None and each > machine_gpus[1]:
        return _more_than_gpus(setup, world, machine_gpus, each)
    if rest:
        return failed(
            setup.subject,
            f"{stated} and cannot be divided by them: accelerate starts {each} on each, and"
            f" {counted(rest, 'process is', 'processes are')} never started.",
            at=world,
            also=also,
            remedy=f"Give a multiple of {count}, such as {each * count} or {(each + 1) * count}.",
            severity=Severity.WARNING,
        )
    return passed(setup.subject)


def _more_than_gpus(setup: Setup, world: Claim, machine_gpus: tuple[Claim, int], each: int) -> Verdict:
    """For a configuration without a launch; with one, GPU001 reports it."""
    return failed(
        setup.subject,
        f"{quoted(world)} starts {counted(each, 'process', 'processes')} on each machine, but"
        f" {placed(machine_gpus[0])} names {counted(machine_gpus[1], 'GPU')} there.",
        at=world,
        also=((machine_gpus[0], counted(machine_gpus[1], "GPU")),),
        remedy=f"Start {machine_gpus[1]} on each machine, or name more GPUs.",
        severity=Severity.WARNING,
    )


def _machine_gpus(setup: Setup) -> tuple[Claim, int] | None:
    """The GPUs of one machine, and the claim that gives them."""
    if setup.launch is not None:
        gpu_counts = gpus(setup.job, setup.launch)
        found = numbers(gpu_counts[0]) if gpu_counts is not None else ()
        return (gpu_counts[1][0], found[0]) if gpu_counts is not None and len(found) == 1 and found[0] > 0 else None
    for claim in setup.claims("env.CUDA_VISIBLE_DEVICES"):
        names = [name for text in texts(claim.value) for name in text.split(",") if name.strip()]
        return (claim, len(names)) if names else None
    return None


def several(setup: Setup) -> bool:
    """Whether the setup certainly spans more than one machine."""
    count = setup.number("nodes")
    return count is not None and count > 1


@rule(
    "ACC006",
    "accelerate-rendezvous-back-end-unread",
    severity=Severity.WARNING,
    otherwise="no configuration for several machines names a rendezvous backend",
    each=_setups_with("rendezvous_backend_unread", where=several),
)
def accelerate_rendezvous_back_end_unread(question: Question[Setup]) -> Verdict | None:
    """A configuration names a rendezvous backend that does not exist, or that nothing will use.

    What it checks: rdzv_backend of an Accelerate configuration for several machines is one that torchrun has, and is
    `static` or repeated on the command line.

    Why it matters: `accelerate launch` takes the backend from its command line, where the default is static, and
    ignores the file: machines that rely on c10d to assign ranks then all need a machine_rank. A name such as `nccl` is
    that of a communication library; given on the command line, torchrun rejects it.

    Example: `rdzv_backend: nccl`.

    Fix: Write `rdzv_backend: static` and give each machine its machine_rank, or pass `--rdzv_backend c10d`.

    Known limits: c10d in the file is only a note, because a job with machine ranks runs just as well.
    """
    setup = question.of
    named = question.claims
    counted = setup.claims("rendezvous_backend")
    stated = [claim for claim in counted if claim.relation is Relation.SETS and claim.strength > named[0].strength]
    back_end = setup.text("rendezvous_backend_unread")
    if back_end in ("", "static") or stated:
        return None
    exists = back_end in _BACKENDS
    return failed(
        question.subject,
        f"{quoted(named[0])} is ignored: accelerate takes `static` unless the command line gives"
        + (" --rdzv_backend" + ("." if exists else f", and no rendezvous backend is called {back_end!r}.")),
        at=named[0],
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
        return unknown(setup.subject, "the program that submits the line may add the address", at=setup.launch)
    claim = distinct(question.claims)[0]
    return failed(
        question.subject,
        f"{quoted(claim)} spans {count} machines, but neither the command line nor the configuration"
        " gives main_process_ip: accelerate uses `None` as the address.",
        at=setup.launch,
        also=((claim, f"{count} machines"),),
        remedy="Give --main_process_ip (the address of the first machine) and --main_process_port.",
    )


@rule(
    "ACC009",
    "accelerate-options-exclude-each-other",
    severity=Severity.ERROR,
    otherwise="no Accelerate launch has a distribution option",
    each=_setups_with("distributed_type"),
)
def accelerate_options_exclude_each_other(question: Question[Setup]) -> Verdict | None:
    """`accelerate launch` is given options that exclude each other.

    What it checks: At most one of --multi_gpu, --use_deepspeed and --use_fsdp; with --multi_gpu at least two processes;
    with distributed_type MULTI_GPU on one machine at least two GPUs in gpu_ids.

    Why it matters: Accelerate stops with a ValueError: "You can only use one of ...", "You need to use at least 2
    processes to use `--multi_gpu`", "Less than two GPU ids were configured".

    Example: `accelerate launch --multi_gpu --use_deepspeed ... train.py`.

    Fix: Keep the intended one: `--use_deepspeed` and `--use_fsdp` run on several GPUs by themselves.

    Known limits: gpu_ids is only checked together with a configuration that sets MULTI_GPU; in one that no launch names
    it is a warning.
    """
    return _options_verdict(question.of, question.claims)


def _options_verdict(setup: Setup, kinds: tuple[Claim, ...]) -> Verdict:
    first = kinds[0]
    if len({text for claim in kinds for text in texts(claim.value)}) > 1:
        return failed(
            setup.subject,
            f"{quoted(first)} and {quoted(kinds[1])} exclude each other: accelerate stops.",
            at=kinds[1],
            also=((first, "the other"),),
            remedy="Keep one: --use_deepspeed and --use_fsdp run on several GPUs by themselves.",
        )
    world = setup.claims("world_size")
    flagged = first.strength >= Strength.FLAG and first.alternatives == ("MULTI_GPU",)
    total = setup.number("world_size")
    unresolved = undecided(setup.subject, world, setup.launch) if flagged else None
    if unresolved is not None:
        return unresolved
    if flagged and total is not None and total < 2 and world[0].strength >= Strength.FLAG:
        return failed(
            setup.subject,
            f"{quoted(first)} needs at least two processes, but {placed(world[0])} gives one: accelerate stops.",
            at=first,
            also=((world[0], "one process"),),
            remedy="Drop --multi_gpu, or start more processes.",
        )
    devices = setup.claims("env.CUDA_VISIBLE_DEVICES")
    # Accelerate counts the commas: `0,` are two.
    names = [name for claim in devices for text in texts(claim.value) for name in text.split(",")]
    here = setup.number("nodes") in (None, 1) and first.alternatives == ("MULTI_GPU",) and not flagged
    if here and len(devices) == 1 and len(names) == 1:
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

    Fix: Add `"zero_optimization": {"stage": 2}`; stage 0 for none.

    Known limits: A file that Hugging Face's trainer gets through its own `--deepspeed` needs no such section.
    """
    read = {file.path for file in job.files if file.kind == "deepspeed"}
    for launch in job.launches:
        for target in _files(job, launch):
            if target not in read:
                continue
            keys = [c for c in job.about("deepspeed_key", launch.scope) if c.span.path == target]
            names = [text for claim in keys for text in texts(claim.value)]
            broken = [note for note in job.notes if note.span.path == target]
            if "zero_optimization" in names:
                yield passed(launch.id)
            elif not keys or broken:
                yield unknown(launch.id, f"{target} could not be read completely")
            else:
                yield failed(
                    launch.id,
                    f"{target} has no `zero_optimization`, which Accelerate requires: every rank stops.",
                    at=keys[0],
                    also=((launch, "started here"),),
                    remedy='Add `"zero_optimization": {"stage": 2}` (stage 0 for none).',
                )


def _files(job: Job, launch: Launch) -> list[str]:
    """The DeepSpeed files that Accelerate itself is given: by its option, or by its configuration."""
    own = {claim.span.path for claim in job.about("accelerate_key", launch.scope)}
    found = []
    for reference in job.references:
        if reference.role != "config" or reference.scope != launch.scope:
            continue
        line = reference.span.snippet[: reference.span.end_column]
        if reference.span.path in own or "--deepspeed_config_file" in line or "--deepspeed-config-file" in line:
            found.append(reference.target)
    return list(dict.fromkeys(found))
