"""`accelerate launch`: how many processes are shared by how many machines, and where these meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.job import WHOLE_JOB, Claim, Job, Launch, Relation, Strength, strongest
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.gpus import given_for_one_machine, gpus
from preflight_rules.reading import (
    counted,
    distinct,
    is_loopback,
    job_value,
    numbers,
    placed,
    quoted,
    texts,
    undecided,
    where,
)

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


@rule(
    "ACC003",
    "accelerate-machines-disagree",
    severity=Severity.ERROR,
    evidence=("huggingface/accelerate#2335",),
)
def machines_disagree(job: Job) -> Iterator[Verdict]:
    """The configurations for the machines of one job do not say the same.

    What it checks:
        Where several configurations (or launch lines) of Accelerate are for the machines of one job: num_processes,
        num_machines and the place where they meet are the same in all, each machine_rank occurs once, and gpu_ids
        lists as many GPUs on each. In any of them machine_rank is below num_machines.

    Why it matters:
        Every machine starts num_processes // num_machines of what its own file says and builds a world of that size.
        Two sizes mean ranks that wait for others who do not exist.

    Example:
        `num_processes: 7` in sv1.yaml and `num_processes: 2` in sv2.yaml.

    Fix:
        Keep one file and give `--machine_rank` on the command line.

    Known limits:
        Files that were not named together are taken for those of one job by their names or the place where they meet,
        which is a guess and gives warnings. gpu_ids may name other GPUs on another machine, only not more or fewer.

    Evidence:
        huggingface/accelerate#2335 (seven GPUs here, two there).
    """
    found = [setup for setup in setups(job) if _is_of_a_machine(setup) and _several(setup)]
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


#: RDV004 says the rest where launch lines stand side by side.
_EQUAL = {
    "world_size": "processes over all machines",
    "nodes": "machines",
    "master_addr": "the address of the first machine",
    "master_port": "the port of the first machine",
}


def _is_of_a_machine(setup: Setup) -> bool:
    """Whether it says which machine it is for."""
    return any(claim.strength > Strength.DEFAULT for claim in setup.claims("node_rank"))


def _several(setup: Setup) -> bool:
    count = setup.number("nodes")
    return count is not None and count > 1


def _in_range(setup: Setup) -> Verdict | None:
    """Of a configuration alone: RDV005 says it of launch lines."""
    ranks, machines = setup.claims("node_rank"), setup.claims("nodes")
    open_end = undecided(setup.subject, (*ranks, *machines))
    if open_end is not None:
        return open_end
    rank, count = setup.number("node_rank"), setup.number("nodes")
    if rank is None or count is None or 0 <= rank < count:
        return passed(setup.subject)
    return failed(
        setup.subject,
        f"{quoted(ranks[0])} is no rank of {placed(machines[0])}: machine ranks go from 0 to {count - 1}.",
        at=ranks[0],
        also=((machines[0], f"{count} machines"),),
        remedy=f"Use a machine_rank from 0 to {count - 1}, each once.",
        # The command line may say something else.
        severity=Severity.WARNING,
    )


def _ranks(found: Sequence[Setup]) -> Verdict:
    subject = f"{found[0].subject} and {len(found) - 1} more"
    claims = [setup.claims("node_rank")[0] for setup in found]
    open_end = undecided(subject, claims)
    if open_end is not None:
        return open_end
    seen: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in seen and found[0].launch is None:
            return failed(
                subject,
                f"{quoted(claim)} stands in {where(seen[rank])} too: two machines of one job claim rank {rank}.",
                at=claim,
                also=((seen[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(found)} machines a machine_rank of its own, from 0 on.",
            )
        seen[rank] = claim
    return passed(subject)


def _equal(found: Sequence[Setup], quantity: str, meaning: str) -> Verdict | None:
    if found[0].launch is not None and quantity != "world_size":
        return None
    said = [(setup, setup.claims(quantity)) for setup in found if setup.claims(quantity)]
    if len(said) < 2:
        return None
    subject = f"{found[0].subject} and {len(found) - 1} more"
    (first, ours), *others = said
    for setup, theirs in others:
        open_end = undecided(subject, (*ours, *theirs), what=meaning)
        if open_end is not None:
            return open_end
        one, other = _values(ours), _values(theirs)
        if _is_first_itself(first, ours) or _is_first_itself(setup, theirs):
            continue
        if one and other and not one & other:
            devices = _devices(first), _devices(setup)
            return failed(
                subject,
                f"{quoted(ours[0])} here and {quoted(theirs[0])} in {where(theirs[0])} differ in {meaning}, which"
                " accelerate needs to be the same on every machine of one job." + _devices_said(*devices),
                at=ours[0],
                also=(
                    (theirs[0], "the other machine"),
                    *((c, "its GPUs") for c in devices if c is not None),
                ),
                remedy=f"Give {meaning} once, the same on every machine"
                + ("; each machine starts num_processes // num_machines." if quantity == "world_size" else "."),
            )
    return passed(subject)


def _values(claims: Sequence[Claim]) -> set[object]:
    value = job_value(claims)
    return set(numbers(value) or texts(value))


def _is_first_itself(setup: Setup, claims: Sequence[Claim]) -> bool:
    """Machine 0 may name itself by a loopback address: its store listens on all of its addresses."""
    return setup.number("node_rank") == 0 and any(is_loopback(text) for c in claims for text in texts(c.value))


def _devices(setup: Setup) -> Claim | None:
    return next(iter(setup.claims("env.CUDA_VISIBLE_DEVICES")), None)


def _devices_said(one: Claim | None, other: Claim | None) -> str:
    if one is None or other is None:
        return ""
    sizes = [len([n for t in texts(c.value) for n in t.split(",") if n.strip()]) for c in (one, other)]
    if sizes[0] == sizes[1]:
        return ""
    return f" The machines list {sizes[0]} and {sizes[1]} GPUs; accelerate starts as many processes on each."


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
        if not named or not _several(setup):
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
