"""What deepspeed's `--include` and `--exclude` pick from its hosts."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import deciding, numbers, quoted, spoken, undecided

_FILTERS = ("included_slots", "excluded_slots")


@rule(
    "HST004",
    "filter-names-unknown-host-or-slot",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "deepspeedai/DeepSpeed#3625",
        "deepspeedai/DeepSpeed#3624",
        "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py",
    ),
)
def filter_names_unknown_host_or_slot(job: Job) -> Iterator[Verdict]:
    """deepspeed is told to use or leave out a host or slot that its hostfile does not have.

    What it checks:
        Every host of `--include` and `--exclude` stands in the hostfile that the launch is given, and every slot
        is below that host's `slots=`.

    Why it matters:
        DeepSpeed stops before anything starts: "No slot '2' specified on host 'w1'". Slots count from 0 and name
        devices, so a hostfile with `slots=2` has only 0 and 1, whatever else the machine holds.

    Example:
        `w1 slots=2` in the hostfile and `--include=w1:2,3`.

    Fix:
        Let the hostfile give every device of the machine (`w1 slots=4`), and pick with --include.

    Known limits:
        Without a hostfile the devices of this machine count, which no file tells.

    Evidence:
        deepspeedai/DeepSpeed#3625, #3624; DeepSpeed, launcher/runner.py, parse_resource_filter.
    """
    met = False
    for launch in job.launches:
        slots = {c.scope.node: c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)}
        for quantity in _FILTERS:
            for claim in deciding(job, quantity, launch.scope):
                if launch.launcher != "deepspeed" or not slots:
                    continue
                met = True
                open_end = undecided(launch.id, (claim, *slots.values()), launch)
                yield open_end or _judged(launch, claim, slots)
    if not met:
        yield not_applicable(job.name, "no launch picks from the hosts of a hostfile")


def _judged(launch: Launch, claim: Claim, slots: dict[str, Claim]) -> Verdict:
    if len(claim.alternatives) != 1 or not isinstance(claim.alternatives[0], tuple):
        return unknown(launch.id, f"{quoted(claim)} is one of several", at=claim)
    for entry in claim.alternatives[0]:
        host, _, listed = str(entry).partition(":")
        if host not in slots:
            return failed(
                launch.id,
                f"{quoted(claim)} names {host}, which the hostfile does not have: DeepSpeed stops at the start.",
                at=claim,
                also=((next(iter(slots.values())), "the hostfile"),),
                remedy=f"Name one of {', '.join(sorted(slots)[:8])}, or add {host} to the hostfile.",
            )
        has = numbers(slots[host].value)
        beyond = [part for part in listed.split(",") if part.isdigit() and has and int(part) >= max(has)]
        if beyond:
            return failed(
                launch.id,
                f"{quoted(claim)} names slot {beyond[0]} of {host}, but {quoted(slots[host])} gives it the slots 0 to"
                f" {max(has) - 1}: DeepSpeed stops at the start.",
                at=claim,
                also=((slots[host], f"{spoken(has)} slots"),),
                remedy=f"Give {host} as many slots as it has GPUs, and pick among them with --include.",
            )
    return passed(launch.id)


@rule(
    "HST005",
    "filter-beside-count",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py",),
)
def filter_beside_count(job: Job) -> Iterator[Verdict]:
    """deepspeed is given both a filter of hosts and a number of nodes or GPUs.

    What it checks:
        A deepspeed line has `--include` or `--exclude`, or `--num_nodes` or `--num_gpus`, not one of each kind.

    Why it matters:
        DeepSpeed refuses: "Cannot specify num_nodes/gpus with include/exclude".

    Example:
        `deepspeed --include localhost:0,1 --num_gpus 2 train.py`.

    Fix:
        Leave the counts out; the filter says how many.

    Known limits:
        None known.

    Evidence:
        DeepSpeed, launcher/runner.py, main.
    """
    met = False
    for launch in job.launches:
        filters = [claim for quantity in _FILTERS for claim in job.about(quantity, launch.scope)]
        if launch.launcher != "deepspeed" or not filters:
            continue
        met = True
        counts = [
            claim
            for quantity in ("nodes", "processes_per_node")
            for claim in job.about(quantity, launch.scope)
            if claim.source == "deepspeed" and claim.spelling.startswith(("--num_nodes", "--num_gpus"))
        ]
        open_end = undecided(launch.id, (filters[0], *counts[:1]), launch) if counts else None
        if open_end is not None:
            yield open_end
        elif counts:
            yield failed(
                launch.id,
                f"{quoted(filters[0])} and {quoted(counts[0])} stand on one line: DeepSpeed stops at the start.",
                at=counts[0],
                also=((filters[0], "the filter"),),
                remedy=f"Remove {quoted(counts[0])}; the filter says how many are used.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no deepspeed line picks hosts or slots")
