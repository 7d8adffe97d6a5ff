"""Checks for leftovers of earlier runs (processes, shared memory, locks), and for nodes that will soon be shut down."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from preflight._util.hostnames import expand_hosts
from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.plans import (
    combine_plans,
    has_launches,
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    size,
    warning_check,
)
from preflight_checks.probes.leftovers import (
    Leftovers,
    Process,
    Reservation,
    cloud_events,
    leftovers,
    locks,
    signs,
    slurm_plans,
)
from preflight_checks.requirements import endpoints, fold, gpu_claims, largest_value, nodes_share_machine

MIB, GIB = 2**20, 2**30
#: A build of an extension takes minutes; a lock older than this, with no compiler running, has no owner.
STALE_LOCK_S = 900.0
#: Unused shared memory is a warning above this size, or above this share of /dev/shm.
MUCH_SHM, MUCH_SHM_PART = 4 * GIB, 0.25
_STATES = {"D": "stuck in the kernel", "T": "stopped", "t": "stopped by a debugger", "Z": "a zombie"}


def _programs(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(posixpath.basename(launch.program) for launch in job.launches if launch.program))


def _search_params(job: Job) -> dict[str, Any]:
    """Return the search parameters of a node: the job's programs and the ports that it fixes."""
    ports = sorted({endpoint.port for endpoint in endpoints(job) if endpoint.port})
    return {"programs": _programs(job), "ports": ports}


_plan = on_every_node(leftovers, params=_search_params, when=has_launches)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _describe(process: Process) -> str:
    notes = [f"{_age(process.age_s)} old"]
    if process.orphan:
        notes.append("without a parent")
    if process.ports:
        notes.append("listens on " + ", ".join(map(str, process.ports)))
    if process.state in _STATES:
        notes.append(_STATES[process.state])
    return f"process {process.pid} ({', '.join(notes)})"


def _belongs_to_run(process: Process) -> bool:
    """Return whether a process is the user's own and part of a run; a worker process only if its parent is gone."""
    return process.own and process.state != "Z" and (process.what != "worker" or process.orphan)


@warning_check("LFT001", "processes-left-over", plan=_plan)
@only_if(has_launches, "processes", "the job starts no processes")
def processes_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No process of an earlier run of this job is still running.

    What it checks: processes of the job's user that run one of the job's programs or a launcher, parameter servers, and
    data loader workers whose parent is gone.

    Why it matters: they occupy the job's ports, GPU memory and shared memory, respond to new ranks on behalf of the old
    run, or use the processors of one node.

    Example: a parameter server of last night's run still listens on port 6170 of node2.

    Fix: inspect the process and end it.

    Known limits: an intended second run of the same user looks the same. preflight never ends processes. PRT011
    reports ports in use.
    """
    yield from missing_facts(facts, leftovers, "processes of earlier runs")
    observed = _facts_by_machine(fleet, facts)
    running = ((node, process) for node, value in observed.items() for process in value.processes)
    found = grouped(((p.what, p.name), (node, p)) for node, p in running if _belongs_to_run(p))
    for (kind, name), processes in found.items():
        yield _leftover_finding(kind, name, processes)
    if observed and not found:
        yield passed(f"processes on {len(observed)} nodes")


def _facts_by_machine(fleet: Fleet, facts: Facts) -> dict[str, Leftovers]:
    """Return the facts by node, only for the first node of each machine, because all nodes of a machine have the
    same.
    """
    observed = dict(facts.observed(leftovers))
    if nodes_share_machine(fleet):
        observed = dict([*observed.items()][:1])
    return observed


_KINDS = {"program": "program {}", "server": "server of {}", "launcher": "launcher {}", "worker": "loader worker of {}"}


def _leftover_finding(kind: str, name: str, processes: list[tuple[str, Process]]) -> Verdict:
    nodes = tuple(dict.fromkeys(node for node, _ in processes))
    node, process = processes[0]
    pids = " ".join(str(p.pid) for n, p in processes if n == node)
    shown = fold((f"{_describe(p)} on {n}" for n, p in processes), 4)
    return failed(
        f"{name} on {fold(nodes)}",
        f"{'a process' if len(processes) == 1 else f'{len(processes)} processes'} of an earlier run "
        f"{'is' if len(processes) == 1 else 'are'} still running ({_KINDS.get(kind, kind).format(name)}): {shown}",
        at=Evidence("processes", process.command, "none", f"ps -o pid,ppid,lstart,stat,args -p {pids}", node),
        nodes=nodes,
        remedy=f"If no other run of yours needs them, end them: `ssh {node} kill {pids}`"
        + (f", and likewise on {fold(nodes[1:])}." if len(nodes) > 1 else "."),
        run=[command("kill", *(str(p.pid) for n, p in processes if n == item), on=(item,)) for item in nodes],
    )


@warning_check("LFT002", "processes-stuck", plan=_plan)
@only_if(has_launches, "processes", "the job starts no processes")
def processes_stuck(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No process of an earlier run is stuck in the kernel or stopped.

    What it checks: the state of processes that run the job's program or a launcher; those in state D are examined
    twice.

    Why it matters: a process that is stuck in the kernel cannot be ended. It occupies its GPU or mount until the node
    is rebooted, and its cause will probably also block the next run.

    Example: a rank waits forever in the NVIDIA driver, or for a dead NFS server.

    Fix: reboot the node, or remove it from the job; continue or end stopped processes.

    Known limits: processes of other users are distinguished only as root.
    """
    yield from missing_facts(facts, leftovers, "process states")
    observed = _facts_by_machine(fleet, facts)
    running = ((node, process) for node, value in observed.items() for process in value.processes)
    by_state = grouped((p.state, (node, p)) for node, p in running if p.state in ("D", "T", "t"))
    for state, processes in by_state.items():
        nodes = tuple(dict.fromkeys(node for node, _ in processes))
        node, process = processes[0]
        remedy = (
            f"No signal can end these processes: reboot {fold(nodes)}, or remove it from the job."
            if state == "D"
            else f"`ssh {node} kill -CONT {process.pid}` continues it, `kill -KILL {process.pid}` ends it."
        )
        yield failed(
            f"{_STATES[state]} on {fold(nodes)}",
            f"processes of {process.name} are {_STATES[state]}: {fold((f'{p.pid} on {n}' for n, p in processes), 4)}",
            at=Evidence("processes", f"state {state}", "R or S", f"cat /proc/{process.pid}/stack", node),
            nodes=nodes,
            remedy=remedy,
        )
    if observed and not by_state:
        yield passed(f"process states on {len(observed)} nodes")


@warning_check("LFT003", "shared-memory-left-over", plan=_plan)
@only_if(has_launches, "shared memory", "the job starts no processes")
def shared_memory_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Killed runs have left little in shared memory.

    What it checks: files in /dev/shm that torch, NCCL, Open MPI, UCX, Paddle or Ray create, and that no living process
    has mapped.

    Why it matters: they stay until the node reboots. When they fill /dev/shm, loader workers and NCCL of an unrelated
    run die with a bus error.

    Example: 40 GiB of torch_* after a week of killed runs.

    Fix: remove them.

    Known limits: without root, unused files of other users cannot be distinguished from used ones, and are ignored.
    """
    yield from missing_facts(facts, leftovers, "shared memory")
    observed = _facts_by_machine(fleet, facts)
    remaining = {node: value for node, value in observed.items() if _own_bytes(value) >= MIB}
    much = {node: value for node, value in remaining.items() if _is_large(value)}
    little = {node: value for node, value in remaining.items() if node not in much}
    for group, severity in ((much, None), (little, Severity.INFO)):
        if not group:
            continue
        node, value = max(group.items(), key=lambda item: _own_bytes(item[1]))
        of = fold(sorted({segment.of for segment in value.segments if segment.own}), 4)
        names = sorted({f"/dev/shm/{segment.name[:5]}*" for segment in value.segments if segment.own})[:4]
        yield failed(
            f"shared memory on {fold(group)}",
            f"{of} files that no process uses occupy {size(_own_bytes(value))} of /dev/shm on {node}"
            + (f", and some on {fold(name for name in group if name != node)}" if len(group) > 1 else ""),
            at=Evidence("/dev/shm", size(_own_bytes(value)), "little", "ls -l /dev/shm", node),
            nodes=tuple(group),
            remedy=f"If no run is active: `ssh {node} 'rm -f {' '.join(names)}'`.",
            severity=severity,
        )
    if observed and not remaining:
        yield passed(f"shared memory on {len(observed)} nodes")


def _own_bytes(value: Leftovers) -> int:
    return sum(segment.size_bytes for segment in value.segments if segment.own and segment.age_s > 60.0)


def _is_large(value: Leftovers) -> bool:
    used = _own_bytes(value)
    return used > MUCH_SHM or (value.shm_total_bytes is not None and used > MUCH_SHM_PART * value.shm_total_bytes)


def _compiles(job: Job) -> bool:
    """Return whether the job may compile torch extensions, as DeepSpeed and other GPU jobs do."""
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches) or bool(job.about("deepspeed_key"))
    return deepspeed or bool(gpu_claims(job))


@warning_check(
    "LFT004",
    "extension-lock-left-over",
    plan=combine_plans(
        _plan, on_every_node(locks, context=True), when=lambda job, fleet: job.launches and _compiles(job)
    ),
)
def extension_lock_left_over(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No build of a torch extension has left its lock behind.

    What it checks: lock files in torch's extensions folder that are older than the duration of a build, while no
    compiler is running on any node.

    Why it matters: torch before 2.14 waits forever, without a message, until such a file is removed: every rank hangs
    at the first extension that DeepSpeed or the script builds.

    Example: a run was cancelled while building fused_adam, and fused_adam/lock was left behind.

    Fix: remove the lock file.

    Known limits: another node outside the job may be building on a shared home directory.
    """
    if not job.launches or not _compiles(job):
        yield not_applicable("extension locks", "nothing in the job's files compiles extensions")
        return
    yield from missing_facts(facts, locks, "extension locks")
    locks_by_node = {row.node: row.fact for row in facts.each(locks)}
    building = [node for node, value in facts.observed(leftovers).items() if value.compiling]
    stale: dict[str, tuple[float, list[str]]] = {}
    for node, fact in locks_by_node.items():
        for lock in fact.value if isinstance(fact, Observed) else ():
            if lock.age_s > STALE_LOCK_S:
                age, nodes = stale.get(lock.path, (lock.age_s, []))
                stale[lock.path] = (min(age, lock.age_s), [*nodes, node])
    for path, (age, nodes) in stale.items():
        if building:
            yield unknown(path, f"a compiler is running on {fold(building)} and may hold the lock")
            continue
        yield failed(
            path,
            f"the lock {path} on {fold(nodes)} is {_age(age)} old and no compiler is running: every rank that builds "
            "or loads that extension waits until the lock is removed",
            at=Evidence("extension lock", f"{_age(age)} old", "none", f"ls -l {path}", nodes[0]),
            nodes=nodes,
            remedy=f"If no build is running: `ssh {nodes[0]} rm {path}`.",
            run=(command("rm", path, on=nodes),),
        )
    if locks_by_node and not stale and not all(isinstance(fact, Unavailable) for fact in locks_by_node.values()):
        yield passed(f"extension locks on {len(locks_by_node)} nodes")


@check("LFT005", "node-shared-with-others", plan=_plan, severity=Severity.INFO, confidence=Confidence.LOW)
@only_if(has_launches, "other users", "the job starts no processes")
def node_shared_with_others(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No other user runs computations on the nodes.

    What it checks: Python processes of other users that have kept a processor more than half busy.

    Why it matters: all ranks wait for the slowest, and ports and memory are also shared.

    Example: another user's preprocessing runs on node2.

    Fix: request exclusive use of the node, or wait.

    Known limits: informational only, because sharing may be intended.
    """
    yield from missing_facts(facts, leftovers, "other users")
    observed = _facts_by_machine(fleet, facts)
    shared = {node: value for node, value in observed.items() if value.strangers}
    if shared:
        node, value = next(iter(shared.items()))
        describe = fold((f"{count} of {user}" for user, count in sorted(value.strangers.items())), 4)
        yield failed(
            f"others on {fold(shared)}",
            f"busy Python processes of other users are running on {fold(shared)} ({node}: {describe})",
            at=Evidence("processes", describe, "none", "ps -eo user,pcpu,args --sort=-pcpu", node),
            nodes=tuple(shared),
            remedy=f"Request exclusive use of {fold(shared)}, or wait.",
        )
    elif observed:
        yield passed(f"other users on {len(observed)} nodes")


#: The assumed run time if the files give none: most planned events are announced a day ahead.
DAY_S = 86400.0


def _plan_signs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
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
    plan=_plan_signs,
    probes=(signs, slurm_plans, cloud_events),
    severity=Severity.WARNING,
)
def node_will_go_away(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No restart, drain or closure of a node is planned while the job runs.

    What it checks: a shutdown that systemd has planned, a file that disables logins, packages that require a restart
    (informational); if a node has scontrol, its state and maintenance reservations that begin before the job's time
    limit (a day if the files give none); with `--allow metadata`, events of AWS, Azure or Google Cloud.

    Why it matters: the job ends with the node, and the work since the last checkpoint is lost; launchers that
    use ssh cannot log in if logins are disabled.

    Example: `shutdown -r +600` was given on node3, for a new kernel.

    Fix: exclude the node, shorten the run, or save a checkpoint first.

    Known limits: without Slurm and `--allow metadata`, only the node's own signs are checked. The cloud's service is
    queried only if the firmware identifies the cloud.
    """
    observed = yield from known_facts(facts, signs, "signs of a shutdown")
    limit = largest_value(job, "time_limit_s")
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
            remedy=f"Restart {fold(waiting)} before the job, or check whether `nvidia-smi` still works there: a "
            "driver that was updated but not reloaded fails to load.",
            severity=Severity.INFO,
        )
    for verdict in (*_slurm_findings(facts, fleet, runs_s), *_cloud_findings(facts)):
        has_finding = True
        yield verdict
    if observed and not has_finding:
        yield passed(f"no planned shutdown of {len(observed)} nodes")


_ACTION_TEXTS = {"reboot": "restart", "poweroff": "be disabled", "halt": "be halted", "kexec": "restart"}


def _duration_text(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _slurm_findings(facts: Facts, fleet: Fleet, runs_s: float) -> Iterator[Verdict]:
    names = {node.name.partition(".")[0]: node.name for node in fleet.nodes}
    # A node without Slurm is normal.
    for asking, plans in facts.observed(slurm_plans).items():
        held = grouped(((node.state, node.reason), names.get(node.name, node.name)) for node in plans.nodes)
        for (state, reason), nodes in held.items():
            yield failed(
                f"Slurm: {state} {reason}".rstrip(),
                f"Slurm has reserved {fold(nodes)} for {state}" + (f": {reason}" if reason else ""),
                at=Evidence("node state", state, "idle or allocated", f"scontrol show node {nodes[0]}", asking),
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
                    remedy="Reduce the time limit (`--time`), or save a checkpoint before the reservation begins.",
                )


def _members(reservation: Reservation) -> list[str]:
    try:
        return list(expand_hosts(reservation.nodes))
    except ValueError:
        return []


def _cloud_findings(facts: Facts) -> Iterator[Verdict]:
    observed = facts.observed(cloud_events).items()
    announced = grouped((fold(value.events, 4), node) for node, value in observed if value.events)
    for events, nodes in announced.items():
        yield failed(
            f"cloud: {events}",
            f"the cloud provider has scheduled events for {fold(nodes)}: {events}",
            at=Evidence("scheduled events", events, "none", "the cloud's metadata service", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"Exclude {fold(nodes)}, or save a checkpoint before the event.",
        )
