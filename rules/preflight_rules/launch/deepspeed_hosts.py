"""Hosts and slots that deepspeed's `--include` and `--exclude` select."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, is_whole_number
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import joined, quoted, undecided

_FILTERS = ("included_slots", "excluded_slots")


@rule(
    "HST004",
    "filter-names-unknown-host-or-slot",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch selects hosts of a hostfile",
    evidence=(
        "deepspeedai/DeepSpeed#3625",
        "deepspeedai/DeepSpeed#3624",
        (
            "DeepSpeed, launcher/runner.py, parse_resource_filter",
            "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py",
        ),
    ),
)
def filter_names_unknown_host_or_slot(job: Job) -> Iterator[Verdict]:
    """`--include` or `--exclude` of deepspeed names a host or slot that the hostfile does not have.

    What it checks: Every host of `--include` and `--exclude` is in the hostfile that the launch is given, and every
    slot is below that host's `slots=`.

    Why it matters: DeepSpeed stops before anything starts: "No slot '2' specified on host 'w1'". Slots count from 0 and
    name devices, so a hostfile with `slots=2` has only 0 and 1, whatever else the machine holds.

    Example: `w1 slots=2` in the hostfile and `--include=w1:2,3`.

    Fix: List every device of the machine in the hostfile (`w1 slots=4`), and select with --include.

    Known limits: Without a hostfile DeepSpeed uses the devices of the machine, which are not known from files.
    """
    for launch in job.launches:
        slots = {c.scope.node: c for c in job.about("host_slots") if c.scope.launch in ("", launch.id)}
        for quantity in _FILTERS:
            for claim in job.value_claims(quantity, launch.scope):
                if launch.launcher != "deepspeed" or not slots:
                    continue
                undecided_verdict = undecided(launch.id, (claim, *slots.values()), launch)
                yield undecided_verdict or _judged(launch, claim, slots)


def _judged(launch: Launch, claim: Claim, slots: dict[str, Claim]) -> Verdict:
    if len(claim.alternatives) != 1 or not isinstance(claim.alternatives[0], tuple):
        return unknown(launch.id, f"{quoted(claim)} has several values", at=claim)
    for entry in claim.alternatives[0]:
        host, _, listed = str(entry).partition(":")
        if host not in slots:
            return failed(
                launch.id,
                f"{quoted(claim)} names {host}, which is not in the hostfile: DeepSpeed fails at startup.",
                at=claim,
                also=((next(iter(slots.values())), "the hostfile"),),
                remedy=f"Name one of {', '.join(sorted(slots)[:8])}, or add {host} to the hostfile.",
            )
        has = numbers(slots[host].value)
        beyond = [part for part in listed.split(",") if is_whole_number(part) and has and int(part) >= max(has)]
        if beyond:
            return failed(
                launch.id,
                f"{quoted(claim)} names slot {beyond[0]} of {host}, but {quoted(slots[host])} gives it slots 0"
                f" to {max(has) - 1}: DeepSpeed fails at startup.",
                at=claim,
                also=((slots[host], f"{joined(has)} slots"),),
                remedy=f"Give {host} as many slots as it has GPUs, and select among them with --include.",
            )
    return passed(launch.id)


@rule(
    "HST005",
    "filter-beside-count",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no deepspeed launch selects hosts or slots",
    evidence=(
        (
            "DeepSpeed, launcher/runner.py, main",
            "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py",
        ),
    ),
)
def filter_beside_count(job: Job) -> Iterator[Verdict]:
    """deepspeed is given both a filter of hosts and a number of nodes or GPUs.

    What it checks: A deepspeed line has `--include` or `--exclude`, or `--num_nodes` or `--num_gpus`, not one of each
    kind.

    Why it matters: DeepSpeed stops with "Cannot specify num_nodes/gpus with include/exclude".

    Example: `deepspeed --include localhost:0,1 --num_gpus 2 train.py`.

    Fix: Remove the counts; the filter already determines them.

    Known limits: None known.
    """
    for launch in job.launches:
        filters = [claim for quantity in _FILTERS for claim in job.about(quantity, launch.scope)]
        if launch.launcher != "deepspeed" or not filters:
            continue
        counts = [
            claim
            for quantity in ("nodes", "processes_per_node")
            for claim in job.about(quantity, launch.scope)
            if claim.source == "deepspeed" and claim.spelling.startswith(("--num_nodes", "--num_gpus"))
        ]
        undecided_verdict = undecided(launch.id, (filters[0], *counts[:1]), launch) if counts else None
        if undecided_verdict is not None:
            yield undecided_verdict
        elif counts:
            yield failed(
                launch.id,
                f"{quoted(filters[0])} and {quoted(counts[0])} exclude each other: DeepSpeed fails at startup.",
                at=counts[0],
                also=((filters[0], "the filter"),),
                remedy=f"Remove {quoted(counts[0])}; the filter already determines the count.",
            )
        else:
            yield passed(launch.id)
