"""Accelerate configurations for the machines of one job, which must agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Strength
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule
from preflight_rules.helpers import placed, quoted, undecided, where
from preflight_rules.launch.accelerate import Setup, setups, several


@rule(
    "ACC003",
    "accelerate-machines-disagree",
    severity=Severity.ERROR,
    evidence=(("seven GPUs here, two there", "huggingface/accelerate#2335"),),
)
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
    undecided_verdict = undecided(setup.subject, (*ranks, *machines))
    if undecided_verdict is not None:
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
    subject = f"{found[0].subject} and {len(found) - 1} more"
    claims = [setup.claims("node_rank")[0] for setup in found]
    undecided_verdict = undecided(subject, claims)
    if undecided_verdict is not None:
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
    subject = f"{found[0].subject} and {len(found) - 1} more"
    (first, ours), *others = stated
    for setup, theirs in others:
        undecided_verdict = undecided(subject, (*ours, *theirs), quantity=meaning)
        if undecided_verdict is not None:
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
