"""Whether a node will be taken away, restarted or closed while the job runs."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, command, failed, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, largest, unseen
from preflight_checks.probes.maintenance import (
    Reservation,
    SlurmPlans,
    cloud_events,
    signs,
    slurm_plans,
)

#: Where the files do not say how long the job runs: most of what is planned is announced a day ahead.
A_DAY_S = 86400.0


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        yield Request(probe_name(signs), node.name)
        yield Request(probe_name(cloud_events), node.name, consent="metadata")
    # One node asks for all: a thousand at once are a load for the controller.
    for node in fleet.reached[:1]:
        names = sorted(other.name.partition(".")[0] for other in fleet.nodes)
        yield Request(probe_name(slurm_plans), node.name, {"nodes": names}, deadline_s=7.0)


@check(
    "SYS003",
    "node-will-go-away",
    plan=_plan,
    probes=(signs, slurm_plans, cloud_events),
    cost="looks at some files below /run; one node asks scontrol, 3 s twice at most; with --allow metadata each asks "
    "the cloud's own service, 1 s for each question",
    severity=Severity.WARNING,
    evidence=("facebookresearch/gcm#139", "GoogleCloudPlatform/cluster-toolkit#2987"),
)
def node_will_go_away(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Nobody plans to restart, drain or close a node while the job runs.

    What it checks: a shutdown that systemd has planned, a file that refuses logins, packages that wait for a restart
    (information); where a node has scontrol, its state and reservations for maintenance that begin before the job's
    time limit (a day where the files give none); with `--allow metadata` events of AWS, Azure or Google Cloud.

    Why it matters: the job ends with the node, and what was computed since the last checkpoint is lost; with logins
    refused no launcher that uses ssh gets in.

    Example: `shutdown -r +600` was given on node3, for a new kernel.

    Fix: leave the node out, run shorter, or save a checkpoint before it begins.

    Known limits: without Slurm, and without `--allow metadata`, only the node's own signs. Nothing is asked of the
    cloud unless the firmware says which one it is.

    Evidence: facebookresearch/gcm#139, GoogleCloudPlatform/cluster-toolkit#2987.
    """
    have = facts.observed(signs)
    yield from unseen(facts, signs, "signs of a shutdown")
    limit = largest(job, "time_limit_s")
    runs_s = float(limit[0]) if limit is not None else A_DAY_S
    told = False
    planned: dict[str, dict[str, float]] = {}
    for node, value in have.items():
        if value.shutdown and (value.shutdown_in_s or 0.0) <= runs_s:
            planned.setdefault(value.shutdown, {})[node] = value.shutdown_in_s or 0.0
    for mode, when in planned.items():
        told = True
        node = min(when, key=lambda name: when[name])
        soonest = f"in {_spoken(when[node])}"
        yield failed(
            f"shutdown: {mode}",
            f"{fold(when)} will {_VERBS.get(mode, mode)} {soonest}" + (" at the earliest" if len(when) > 1 else ""),
            at=Evidence("planned shutdown", f"{mode} {soonest}", "none", "shutdown --show", node),
            also=limit[1] if limit is not None else (),
            nodes=tuple(when),
            remedy=f"Leave {fold(when)} out, or cancel it there (`shutdown -c`).",
        )
    closed = {node: value.no_logins for node, value in have.items() if value.no_logins is not None}
    if closed:
        told = True
        node, text = next(iter(closed.items()))
        yield failed(
            "logins",
            f"users may not log in to {fold(closed)}" + (f": {text}" if text else ""),
            at=Evidence("/run/nologin", text or "present", "absent", "cat /run/nologin /etc/nologin", node),
            nodes=tuple(closed),
            remedy=f"Leave {fold(closed)} out until it is gone: launchers that use ssh do not get in.",
        )
    waiting = [node for node, value in have.items() if value.restart_wanted]
    if waiting:
        told = True
        yield failed(
            "restart",
            f"updated packages wait for a restart of {fold(waiting)}",
            at=Evidence("/run/reboot-required", "present", "absent", "cat /run/reboot-required*", waiting[0]),
            nodes=tuple(waiting),
            remedy=f"Restart {fold(waiting)} before the job, or see whether `nvidia-smi` still answers there: a driver "
            "that was updated and not reloaded fails to load.",
            severity=Severity.INFO,
        )
    for verdict in (*_slurm(facts, fleet, runs_s), *_cloud(facts)):
        told = True
        yield verdict
    if have and not told:
        yield passed(f"no plans for {len(have)} nodes")


_VERBS = {"reboot": "restart", "poweroff": "be switched off", "halt": "be halted", "kexec": "restart"}


def _spoken(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _slurm(facts: Facts, fleet: Fleet, runs_s: float) -> Iterator[Verdict]:
    names = {node.name.partition(".")[0]: node.name for node in fleet.nodes}
    for seen in facts.each(slurm_plans):
        if not isinstance(seen.fact, Observed):
            # A node without Slurm is an ordinary one.
            continue
        plans: SlurmPlans = seen.fact.value
        held: dict[tuple[str, str], list[str]] = {}
        for node in plans.nodes:
            held.setdefault((node.state, node.reason), []).append(names.get(node.name, node.name))
        for (state, reason), nodes in held.items():
            yield failed(
                f"Slurm: {state} {reason}".rstrip(),
                f"Slurm holds {fold(nodes)} for {state}" + (f": {reason}" if reason else ""),
                at=Evidence(
                    "state of the node", state, "idle or allocated", f"scontrol show node {nodes[0]}", seen.node
                ),
                nodes=tuple(nodes),
                remedy=f"Leave {fold(nodes)} out (`--exclude={','.join(nodes[:8])}`), or ask who drained it.",
                run=(command("scontrol", "show", "node", ",".join(nodes)),),
                confidence=Confidence.MEDIUM,
            )
        for reservation in plans.reservations:
            hit = [names[short] for short in _members(reservation) if short in names]
            if hit and reservation.starts_in_s <= runs_s:
                when = "has begun" if reservation.starts_in_s <= 0 else f"begins in {_spoken(reservation.starts_in_s)}"
                yield failed(
                    f"reservation {reservation.name}",
                    f"maintenance {reservation.name} of {fold(hit)} {when}",
                    at=Evidence(
                        "reservation", when, "after the job", f"scontrol show res {reservation.name}", seen.node
                    ),
                    nodes=tuple(hit),
                    remedy="Run shorter (`--time`), or save a checkpoint before it begins.",
                )


def _members(reservation: Reservation) -> list[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return [str(name) for name in NodeSet(reservation.nodes, resolver=RESOLVER_NOGROUP)]
    except NodeSetException:
        return []


def _cloud(facts: Facts) -> Iterator[Verdict]:
    announced: dict[str, list[str]] = {}
    for seen in facts.each(cloud_events):
        if isinstance(seen.fact, Observed) and seen.fact.value.events:
            announced.setdefault(fold(seen.fact.value.events, 4), []).append(seen.node)
    for events, nodes in announced.items():
        yield failed(
            f"cloud: {events}",
            f"the cloud will act on {fold(nodes)}: {events}",
            at=Evidence("scheduled events", events, "none", "the metadata service of the cloud", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"Leave {fold(nodes)} out, or save a checkpoint before it begins.",
        )
