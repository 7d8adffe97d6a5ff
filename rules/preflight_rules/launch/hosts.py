"""Hostfiles, lists of hosts, and what deepspeed's `--include` and `--exclude` select of them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, NoteKind, is_whole_number
from preflight.model.job.claim import distinct
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, quoted, why_unresolved
from preflight_rules.launches import is_placeholder


@rule(
    "HST001", "host-listed-twice", severity=Severity.ERROR, otherwise="no list of hosts is given to deepspeed or Paddle"
)
def host_listed_twice(job: Job) -> Iterator[Verdict]:
    """A list of hosts names a host twice.

    What it checks: The hosts of a hostfile that deepspeed reads, and of Paddle's `--ips`, are all different.

    Why it matters: DeepSpeed stops with "Hostfile contains multiple entries". Elsewhere two nodes' worth of ranks start
    on one host, and another host is missing.

    Example: Two lines `worker-1 slots=8` in a hostfile.

    Fix: Write each host once, with all its slots.

    Known limits: For MPI several lines for one host are the normal way to give it several slots, so nothing is
    reported.
    """
    for launch in (launch for launch in job.launches if launch.launcher in ("deepspeed", "paddle")):
        for claim in (claim for claim in job.value_claims("hosts", launch.scope) if claim.source != "slurm"):
            verdict = undecided(launch.id, (claim,), launch)
            lists = [value for value in claim.alternatives if isinstance(value, tuple)]
            if verdict is None and lists and all(is_placeholder(str(host)) for hosts in lists for host in hosts):
                verdict = unknown(launch.id, f"{quoted(claim)} names placeholders in the place of hosts", at=claim)
            elif verdict is None and lists and all(len(set(hosts)) < len(hosts) for hosts in lists):
                verdict = _duplicate_finding(launch.id, claim, tuple(str(host) for host in lists[0]))
            yield verdict or passed(launch.id)


def _duplicate_finding(subject: str, claim: Claim, hosts: tuple[str, ...]) -> Verdict:
    host = next(host for host in hosts if hosts.count(host) > 1)
    lines = [line for line in claim.because if line.scope.node == host]
    place = lines[1] if len(lines) > 1 else claim
    stops = claim.source == "hostfile"
    return failed(
        subject,
        f"{host} is listed {hosts.count(host)} times"
        + (": DeepSpeed stops with 'Hostfile contains multiple entries'." if stops else f" in {quoted(claim)}."),
        at=place,
        also=((lines[0], "first entry"),) if len(lines) > 1 else (),
        remedy=f"List {host} once, with all its slots." if stops else f"List {host} once.",
        severity=None if stops else Severity.WARNING,
    )


@rule("HST002", "host-without-slots", severity=Severity.WARNING, otherwise="no hostfile sets slots")
def host_without_slots(job: Job) -> Iterator[Verdict]:
    """A hostfile gives a host zero slots.

    What it checks: `slots=` of every host of a hostfile is above 0.

    Why it matters: No rank is started on that host, although it is counted as a node of the job.

    Example: `worker-2 slots=0`.

    Fix: Give the number of GPUs of the host, or leave the host out.

    Known limits: Whether the host has as many GPUs as slots is checked by `preflight check`.
    """
    for claim in distinct(job.about("host_slots")):
        found = numbers(claim.value)
        if why_unresolved((claim,)) is not None:
            yield unknown(claim.scope.node, f"{quoted(claim)} is unknown", at=claim)
        elif found and max(found) < 1:
            yield failed(
                claim.scope.node,
                f"{quoted(claim)} gives {claim.scope.node} zero slots, so no rank starts there.",
                at=claim,
                remedy=f"Give {claim.scope.node} as many slots as it has GPUs, or remove it.",
            )
        else:
            yield passed(claim.scope.node)
    read = {file.path for file in job.files}
    for reference in (r for r in job.references if r.role == "hostfile" and r.target not in read):
        yield unknown(reference.target, f"hostfile {reference.target} was not read", at=reference.span)


@rule(
    "HST003",
    "hostfile-missing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch names a hostfile",
)
def hostfile_missing(job: Job) -> Iterator[Verdict]:
    """A launch names a hostfile that does not exist.

    What it checks: A hostfile that a launch line refers to by a path inside the root exists.

    Why it matters: deepspeed prints "Unable to find hostfile, will proceed with training with local resources only" and
    trains on one node, while the others are paid for.

    Example: `deepspeed --hostfile=hostfile train.py` with no file `hostfile` beside the script.

    Fix: Correct the path, or add the file.

    Known limits: A hostfile that is written when the job starts, by something other than the launch script itself, does
    not exist yet; a path outside the root is not checked.
    """
    named = {reference.target: reference for reference in job.references if reference.role == "hostfile"}
    read = {file.path for file in job.files}
    for target, reference in named.items():
        missing = [
            note
            for note in job.notes
            if note.kind is NoteKind.MISSING and (note.span == reference.span or note.span.path == target)
        ]
        launch = next((run for run in job.launches if run.id == reference.scope.launch), None)
        subject = reference.scope.launch or job.name
        local = launch is not None and launch.launcher == "deepspeed"
        if target in read:
            yield passed(subject)
        elif missing and any(target in texts(claim.value) for claim in job.about("produced_hostfile")):
            yield unknown(subject, f"the script writes hostfile {target} when it runs", at=reference.span)
        elif missing:
            yield failed(
                subject,
                f"hostfile {target} does not exist"
                + (": deepspeed then trains on this node alone and only logs a warning." if local else "."),
                at=reference.span,
                remedy=f"Add {target}, or correct the path.",
            )
        else:
            yield unknown(subject, f"hostfile {target} was not read", at=reference.span)


_FILTERS = ("included_slots", "excluded_slots")


@rule(
    "HST004",
    "filter-names-unknown-host-or-slot",
    severity=Severity.ERROR,
    otherwise="no launch selects hosts of a hostfile",
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


@rule("HST005", "filter-beside-count", severity=Severity.ERROR, otherwise="no deepspeed launch selects hosts or slots")
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
