"""Checks whether a node is about to be reclaimed, restarted or closed while the job runs."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import expand_hosts
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, passed
from preflight_checks.plans import known_facts
from preflight_checks.probes.maintenance import Reservation, cloud_events, signs, slurm_plans
from preflight_checks.requirements import fold, largest

#: The assumed run time if the files give none: most planned events are announced a day ahead.
DAY_S = 86400.0


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        yield Request(probe_name(signs), node.name)
        yield Request(probe_name(cloud_events), node.name, consent="metadata")
    # One node queries for all: a thousand at once would load the controller.
    for node in fleet.reached[:1]:
        names = sorted(other.name.partition(".")[0] for other in fleet.nodes)
        yield Request(probe_name(slurm_plans), node.name, {"nodes": names}, deadline_s=7.0)


@check(
    "SYS003",
    "node-will-go-away",
    plan=_plan,
    probes=(signs, slurm_plans, cloud_events),
    cost="reads some files below /run; one node queries scontrol twice, at most 3 s each; with --allow metadata each "
    "node queries the cloud's metadata service, 1 s per query",
    severity=Severity.WARNING,
)
def node_will_go_away(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No restart, drain or closure of a node is planned while the job runs.

    What it checks: a shutdown that systemd has planned, a file that disables logins, packages that wait for a restart
    (information); where a node has scontrol, its state and reservations for maintenance that begin before the job's
    time limit (a day where the files give none); with `--allow metadata` events of AWS, Azure or Google Cloud.

    Why it matters: the job ends with the node, and what was computed since the last checkpoint is lost; launchers that
    use ssh cannot log in if logins are disabled.

    Example: `shutdown -r +600` was given on node3, for a new kernel.

    Fix: exclude the node, shorten the run, or save a checkpoint before it begins.

    Known limits: without Slurm and `--allow metadata`, only the node's own signs are checked. The cloud's service is
    queried only if the firmware identifies the cloud.
    """
    observed = yield from known_facts(facts, signs, "signs of a shutdown")
    limit = largest(job, "time_limit_s")
    runs_s = float(limit[0]) if limit is not None else DAY_S
    has_finding = False
    planned: dict[str, dict[str, float]] = {}
    for node, value in observed.items():
        if value.shutdown and (value.shutdown_in_s or 0.0) <= runs_s:
            planned.setdefault(value.shutdown, {})[node] = value.shutdown_in_s or 0.0
    for mode, when in planned.items():
        has_finding = True
        node = min(when, key=lambda name: when[name])
        soonest = f"in {_duration_text(when[node])}"
        yield failed(
            f"shutdown: {mode}",
            f"{fold(when)} will {_ACTION_TEXTS.get(mode, mode)} {soonest}"
            + (" at the earliest" if len(when) > 1 else ""),
            at=Evidence("planned shutdown", f"{mode} {soonest}", "none", "shutdown --show", node),
            also=limit[1] if limit is not None else (),
            nodes=tuple(when),
            remedy=f"Exclude {fold(when)}, or cancel the shutdown there (`shutdown -c`).",
        )
    closed = {node: value.no_logins for node, value in observed.items() if value.no_logins is not None}
    if closed:
        has_finding = True
        node, text = next(iter(closed.items()))
        yield failed(
            "logins",
            f"users may not log in to {fold(closed)}" + (f": {text}" if text else ""),
            at=Evidence("/run/nologin", text or "present", "absent", "cat /run/nologin /etc/nologin", node),
            nodes=tuple(closed),
            remedy=f"Exclude {fold(closed)} until the file is gone: launchers that use ssh cannot log in.",
        )
    waiting = [node for node, value in observed.items() if value.restart_wanted]
    if waiting:
        has_finding = True
        yield failed(
            "restart",
            f"updated packages require a restart of {fold(waiting)}",
            at=Evidence("/run/reboot-required", "present", "absent", "cat /run/reboot-required*", waiting[0]),
            nodes=tuple(waiting),
            remedy=f"Restart {fold(waiting)} before the job, or see whether `nvidia-smi` still answers there: a driver "
            "that was updated and not reloaded fails to load.",
            severity=Severity.INFO,
        )
    for verdict in (*_slurm(facts, fleet, runs_s), *_cloud(facts)):
        has_finding = True
        yield verdict
    if observed and not has_finding:
        yield passed(f"no plans for {len(observed)} nodes")


_ACTION_TEXTS = {"reboot": "restart", "poweroff": "be disabled", "halt": "be halted", "kexec": "restart"}


def _duration_text(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _slurm(facts: Facts, fleet: Fleet, runs_s: float) -> Iterator[Verdict]:
    names = {node.name.partition(".")[0]: node.name for node in fleet.nodes}
    # A node without Slurm is normal.
    for asking, plans in facts.observed(slurm_plans).items():
        held = grouped(((node.state, node.reason), names.get(node.name, node.name)) for node in plans.nodes)
        for (state, reason), nodes in held.items():
            yield failed(
                f"Slurm: {state} {reason}".rstrip(),
                f"Slurm holds {fold(nodes)} for {state}" + (f": {reason}" if reason else ""),
                at=Evidence("state of the node", state, "idle or allocated", f"scontrol show node {nodes[0]}", asking),
                nodes=tuple(nodes),
                remedy=f"Exclude {fold(nodes)} (`--exclude={','.join(nodes[:8])}`), or ask who drained it.",
                run=(command("scontrol", "show", "node", ",".join(nodes)),),
                confidence=Confidence.MEDIUM,
            )
        for reservation in plans.reservations:
            hit = [names[short] for short in _members(reservation) if short in names]
            if hit and reservation.starts_in_s <= runs_s:
                when = (
                    "has begun"
                    if reservation.starts_in_s <= 0
                    else f"begins in {_duration_text(reservation.starts_in_s)}"
                )
                yield failed(
                    f"reservation {reservation.name}",
                    f"maintenance {reservation.name} of {fold(hit)} {when}",
                    at=Evidence("reservation", when, "after the job", f"scontrol show res {reservation.name}", asking),
                    nodes=tuple(hit),
                    remedy="Reduce the time limit (`--time`), or save a checkpoint before it begins.",
                )


def _members(reservation: Reservation) -> list[str]:
    try:
        return list(expand_hosts(reservation.nodes))
    except ValueError:
        return []


def _cloud(facts: Facts) -> Iterator[Verdict]:
    observed = facts.observed(cloud_events).items()
    announced = grouped((fold(value.events, 4), node) for node, value in observed if value.events)
    for events, nodes in announced.items():
        yield failed(
            f"cloud: {events}",
            f"the cloud will act on {fold(nodes)}: {events}",
            at=Evidence("scheduled events", events, "none", "the metadata service of the cloud", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"Exclude {fold(nodes)}, or save a checkpoint before it begins.",
        )
