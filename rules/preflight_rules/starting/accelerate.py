"""`accelerate launch`: how many processes are shared by how many machines, and where these meet."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import WHOLE_JOB, Claim, Job, Launch, Relation, strongest
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity
from preflight_rules.reading import (
    counted,
    distinct,
    job_value,
    numbers,
    placed,
    quoted,
    texts,
    undecided,
)
from preflight_rules.starting.gpus import given_for_one_machine, gpus

_SOURCE = "accelerate"
#: What torchrun can meet through (torch/distributed/elastic/rendezvous/registry.py, torch 2.13).
_BACKENDS = frozenset({"static", "c10d", "etcd", "etcd-v2"})


@dataclass(frozen=True, slots=True)
class Setup:
    """What Accelerate is told for one launch, or by one configuration that no launch of the job names."""

    job: Job
    subject: str
    launch: Launch | None
    path: str = ""

    def claims(self, quantity: str) -> tuple[Claim, ...]:
        """The claims in force about a quantity, of Accelerate's own."""
        scope = self.launch.scope if self.launch is not None else WHOLE_JOB
        return strongest(
            claim
            for claim in self.job.about(quantity, scope)
            if claim.source == _SOURCE and (not self.path or claim.span.path == self.path)
        )

    def number(self, quantity: str) -> int | None:
        """The one number a quantity is; None where it is none, several or unknown."""
        found = numbers(job_value(self.claims(quantity))) if self.claims(quantity) else ()
        return found[0] if len(found) == 1 else None

    def text(self, quantity: str) -> str:
        """The one text a quantity is; empty where it is none, several or unknown."""
        found = texts(job_value(self.claims(quantity))) if self.claims(quantity) else ()
        return found[0] if len(found) == 1 else ""


def setups(job: Job) -> tuple[Setup, ...]:
    """Every launch that Accelerate makes; without any, every configuration of Accelerate that was found."""
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


@rule(
    "ACC001",
    "accelerate-processes-counted-per-machine",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("huggingface/accelerate#2521", "huggingface/accelerate#2818"),
)
def processes_counted_per_machine(job: Job) -> Iterator[Verdict]:
    """Accelerate's number of processes is too small, or cannot be shared by its machines.

    What it checks:
        num_processes counts over all machines. For several machines it is no smaller than num_machines, is divisible
        by it, and is not just the number of GPUs of a single machine. In a configuration that no launch names, each
        machine starts no more processes than gpu_ids has GPUs.

    Why it matters:
        Each machine starts num_processes // num_machines: the number of one machine given for all leaves most GPUs
        idle, a smaller one starts nothing at all, and a remainder is never started.

    Example:
        `--num_machines 4 --num_processes 8` on machines with 8 GPUs: 2 processes on each.

    Fix:
        Give the total: GPUs of a machine times machines.

    Known limits:
        The number of GPUs is known from Slurm's options, CUDA_VISIBLE_DEVICES or gpu_ids. Only a launch that would
        start nothing is an error; in a configuration that no launch names it is a warning, because the command line
        may say something else.

    Evidence:
        huggingface/accelerate#2521 (the number of one node in a Slurm script), #2818 (the one that the
        questionnaire writes).
    """
    met = False
    for setup in setups(job):
        world, machines = setup.claims("world_size"), setup.claims("nodes")
        if not world or not machines:
            continue
        met = True
        open_end = undecided(setup.subject, (*machines, *world), setup.launch)
        total, count = setup.number("world_size"), setup.number("nodes")
        if open_end is not None:
            yield open_end
        elif total is None or count is None:
            yield unknown(setup.subject, f"{quoted(world[0])} or {quoted(machines[0])} has several values", at=world[0])
        elif _differs_from_others(setup):
            yield passed(setup.subject)
        elif count < 2:
            owned = _owned(setup) if setup.launch is None else None
            many = owned is not None and total > owned[1]
            yield (
                _more_than_owned(setup, world[0], owned, total) if many and owned is not None else passed(setup.subject)
            )
        else:
            yield _shared(setup, world[0], machines[0], total, count)
    if not met:
        yield not_applicable(job.name, "no launch by Accelerate says both its processes and its machines")


def _differs_from_others(setup: Setup) -> bool:
    """Whether files for several machines say different numbers, which ACC003 says better."""
    if setup.launch is not None:
        return False
    return len({other.number("world_size") for other in setups(setup.job)}) > 1


def _shared(setup: Setup, world: Claim, machines: Claim, total: int, count: int) -> Verdict:
    each, rest = divmod(total, count)
    told = f"{quoted(world)} counts over all {count} machines ({quoted(machines)})"
    also = ((machines, f"{count} machines"),)
    owned = _owned(setup)
    wanted = owned[1] if owned is not None else max(total, 1)
    remedy = f"Give the total over all machines: {wanted * count} for {wanted} on each."
    if each < 1:
        return failed(
            setup.subject,
            f"{told}, so accelerate starts {total} // {count} = 0 processes on each.",
            at=world,
            also=also,
            remedy=remedy,
            severity=Severity.WARNING if setup.launch is None else None,
        )
    if owned is not None and given_for_one_machine(total, count, owned[1]):
        return failed(
            setup.subject,
            f"{told}, so accelerate starts {each} on each, but {placed(owned[0])} gives each {owned[1]} GPUs: it looks"
            " like the number of one machine.",
            at=world,
            also=(*also, (owned[0], f"{owned[1]} GPUs")),
            remedy=remedy,
            severity=Severity.WARNING,
        )
    if setup.launch is None and owned is not None and each > owned[1]:
        return _more_than_owned(setup, world, owned, each)
    if rest:
        return failed(
            setup.subject,
            f"{told} and cannot be divided by them: accelerate starts {each} on each, and"
            f" {counted(rest, 'process is', 'processes are')} never started.",
            at=world,
            also=also,
            remedy=f"Give a multiple of {count}, such as {each * count} or {(each + 1) * count}.",
            severity=Severity.WARNING,
        )
    return passed(setup.subject)


def _more_than_owned(setup: Setup, world: Claim, owned: tuple[Claim, int], each: int) -> Verdict:
    """Of a configuration alone: GPU001 says it where there is a launch."""
    return failed(
        setup.subject,
        f"{quoted(world)} starts {counted(each, 'process', 'processes')} on each machine, but {placed(owned[0])} names"
        f" {counted(owned[1], 'GPU')} there.",
        at=world,
        also=((owned[0], counted(owned[1], "GPU")),),
        remedy=f"Start {owned[1]} on each machine, or name more GPUs.",
        severity=Severity.WARNING,
    )


def _owned(setup: Setup) -> tuple[Claim, int] | None:
    """The GPUs of one machine, and the claim that says so."""
    if setup.launch is not None:
        there = gpus(setup.job, setup.launch)
        found = numbers(there[0]) if there is not None else ()
        return (there[1][0], found[0]) if there is not None and len(found) == 1 and found[0] > 0 else None
    for claim in setup.claims("env.CUDA_VISIBLE_DEVICES"):
        names = [name for text in texts(claim.value) for name in text.split(",") if name.strip()]
        return (claim, len(names)) if names else None
    return None


def several(setup: Setup) -> bool:
    """Whether it is certainly for more than one machine."""
    count = setup.number("nodes")
    return count is not None and count > 1


@rule(
    "ACC006",
    "accelerate-rendezvous-back-end-unread",
    severity=Severity.WARNING,
    evidence=("huggingface/accelerate#1489", "https://pytorch.org/docs/stable/elastic/run.html"),
)
def rendezvous_back_end_unread(job: Job) -> Iterator[Verdict]:
    """A configuration names a rendezvous back end that does not exist, or that nothing will use.

    What it checks:
        rdzv_backend of an Accelerate configuration for several machines is one that torchrun has, and is `static` or
        repeated on the command line.

    Why it matters:
        `accelerate launch` takes the back end from its command line, where the default is static, and never looks at
        the file's: machines that count on c10d to sort out their ranks then all need a machine_rank. A name such as
        `nccl` is that of a communication library; given on the command line, torchrun refuses it.

    Example:
        `rdzv_backend: nccl`.

    Fix:
        Write `rdzv_backend: static` and give each machine its machine_rank, or pass `--rdzv_backend c10d`.

    Known limits:
        c10d in the file is only a note, because a job with machine ranks runs just as well.

    Evidence:
        huggingface/accelerate#1489; torchrun's documentation lists the back ends.
    """
    met = False
    for setup in setups(job):
        named = setup.claims("rendezvous_backend_unread")
        if not named or not several(setup):
            continue
        met = True
        open_end = undecided(setup.subject, named, setup.launch)
        told = setup.claims("rendezvous_backend")
        said = [claim for claim in told if claim.relation is Relation.SETS and claim.strength > named[0].strength]
        back_end = setup.text("rendezvous_backend_unread")
        if open_end is not None:
            yield open_end
        elif back_end in ("", "static") or said:
            yield passed(setup.subject)
        else:
            exists = back_end in _BACKENDS
            yield failed(
                setup.subject,
                f"{quoted(named[0])} is not looked at: accelerate takes `static` unless the command line says"
                + (" --rdzv_backend." if exists else f" otherwise, and no rendezvous back end is called {back_end!r}."),
                at=named[0],
                remedy="Write `rdzv_backend: static` and give each machine its machine_rank, or pass"
                " `--rdzv_backend c10d` on the command line.",
                severity=Severity.INFO if exists else None,
            )
    if not met:
        yield not_applicable(job.name, "no configuration for several machines names a rendezvous back end")


@rule(
    "ACC008",
    "accelerate-main-process-missing",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://huggingface.co/docs/accelerate/package_reference/cli",),
)
def main_process_missing(job: Job) -> Iterator[Verdict]:
    """Several machines are to meet, and nothing says where.

    What it checks:
        A launch whose options and configuration file are both known and that spans several machines is given
        main_process_ip.

    Why it matters:
        Accelerate hands torchrun the endpoint `None:29500`, which no machine can resolve.

    Example:
        `accelerate launch --config_file fsdp.yaml --num_machines 2 train.py` with no main_process_ip in fsdp.yaml.

    Fix:
        Give `--main_process_ip`, the address of the first machine, on every machine.

    Known limits:
        Without --config_file the file in the user's cache may name the address, so nothing is said. DeepSpeed's own
        launcher finds the address by itself.

    Evidence:
        Accelerate's documentation of its command line (main_process_ip: the address of the machine of rank 0).
    """
    met = False
    for setup in setups(job):
        machines = setup.claims("nodes")
        if setup.launch is None or setup.launch.launcher != _SOURCE or not setup.claims("accelerate_key"):
            continue
        if not machines or not setup.claims("rendezvous_backend"):
            continue
        met = True
        count = setup.number("nodes")
        open_end = undecided(setup.subject, machines, setup.launch)
        if open_end is not None:
            yield open_end
        elif count is None or count < 2 or setup.claims("master_addr"):
            yield passed(setup.subject)
        else:
            claim = distinct(machines)[0]
            yield failed(
                setup.subject,
                f"{quoted(claim)} makes {count} machines meet, but neither the line nor its configuration gives"
                " main_process_ip: accelerate passes on `None`.",
                at=setup.launch,
                also=((claim, f"{count} machines"),),
                remedy="Give --main_process_ip (the address of the first machine) and --main_process_port.",
            )
    if not met:
        yield not_applicable(job.name, "no launch by Accelerate whose configuration is known")
