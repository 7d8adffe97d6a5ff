"""Configurations of Accelerate for the machines of one job, which have to say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job, Strength
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Severity
from preflight_rules.reading import (
    is_loopback,
    job_value,
    numbers,
    placed,
    quoted,
    texts,
    undecided,
    where,
)
from preflight_rules.starting.accelerate import Setup, setups, several


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
    found = [setup for setup in setups(job) if _is_of_a_machine(setup) and several(setup)]
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
