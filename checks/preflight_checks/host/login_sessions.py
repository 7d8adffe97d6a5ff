"""Checks for mounts that hang and login sessions that end ranks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, command, failed, passed, root_command
from preflight_checks.host.machines import plan_machines
from preflight_checks.plans import known_facts, on_every_node
from preflight_checks.probes.liveness import ANSWER_S, Liveness, network_mounts
from preflight_checks.probes.machine import machine
from preflight_checks.requirements import fold

#: A response this late is not a hang, but checkpoints and small files will be slow.
SLOW_S = 1.0


@check(
    "SYS004",
    "network-mount-hangs",
    plan=on_every_node(network_mounts),
    cost="queries the free space of every network file system, each in a separate process; at most 2.5 s",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("GPFS listed as mounted, df: stale file handle; node check passed", "mej/nhc#77"),
        ("the storage checks of nvidia-resiliency-ext and of gpud", "https://github.com/NVIDIA/nvidia-resiliency-ext"),
        "https://github.com/leptonai/gpud",
    ),
)
def network_mount_hangs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every network file system that a node has mounted responds.

    What it checks: NFS, Lustre, GPFS, Ceph, FUSE and the like are queried for their free space; no response within 2.5
    s, an error (a stale handle), or more than a second on one node where others are quick.

    Why it matters: whatever touches a hung mount waits forever and cannot be killed: `df`, a shell that looks for a
    program on its PATH, an import that walks sys.path, the clean-up of the job.

    Example: /home2 of node5 hangs since its server was replaced, and the job's users have it in their PATH.

    Fix: `umount -l` it, or bring the server back.

    Known limits: file systems that mount on access (autofs) are skipped. DAT011 and CKP011 check the paths of the job
    itself.
    """
    observed = yield from known_facts(facts, network_mounts, "network file systems")
    ill: dict[tuple[str, str], list[str]] = {}
    slow: dict[str, list[Liveness]] = {}
    for node, mounts in observed.items():
        for mount in mounts:
            if mount.problem:
                ill.setdefault((mount.point, mount.problem), []).append(node)
            elif mount.took_s > SLOW_S:
                slow.setdefault(node, []).append(mount)
    for (point, problem), nodes in ill.items():
        what = f"does not answer within {ANSWER_S:g} s" if problem == "timeout" else f"fails: {problem}"
        mount = next(m for m in observed[nodes[0]] if m.point == point)
        yield failed(
            f"{point}: {problem}",
            f"{point} ({mount.kind} of {mount.source}) {what} on {fold(nodes)}",
            at=Evidence("network file system", what, "an answer", f"timeout 3 stat -f {point}", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"`umount -l {point}` on {fold(nodes)}, or make {mount.source} reachable again.",
            run=(root_command("umount", "-l", point, on=nodes),),
        )
    if slow and len(slow) * 2 < len(observed):
        node, mounts = next(iter(slow.items()))
        worst = max(mounts, key=lambda mount: mount.took_s)
        yield failed(
            "slow",
            f"{worst.point} took {worst.took_s:.1f} s to answer on {node}, and less on most nodes",
            at=Evidence(
                "network file system", f"{worst.took_s:.1f} s", f"below {SLOW_S:g} s", f"stat -f {worst.point}", node
            ),
            nodes=tuple(slow),
            remedy=f"Check how {fold(slow)} reaches {worst.source}.",
            severity=Severity.INFO,
        )
    elif observed and not ill:
        yield passed(f"network file systems of {len(observed)} nodes")


@check(
    "SYS005",
    "session-ends-processes",
    plan=plan_machines,
    cost="reads /etc/systemd/logind.conf",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
    evidence=(("logind.conf(5)", "https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html"),),
)
def session_ends_processes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Logging out does not end ranks that were started in the session.

    What it checks: whether KillUserProcesses is switched on in logind.conf.

    Why it matters: `ssh node nohup torchrun ... &` then ends with the ssh, also with nohup, tmux or setsid, and the
    other nodes wait.

    Example: `KillUserProcesses=yes` on a site's nodes, and a launcher that exits after it started the ranks.

    Fix: `loginctl enable-linger USER`, `systemd-run --user --scope`, or a scheduler.

    Known limits: drop-ins outside /etc are not read. Ranks that a scheduler starts are not affected.
    """
    observed = yield from known_facts(facts, machine, "sessions")
    kills = [
        node for node, value in observed.items() if value.logind.get("KillUserProcesses") in ("yes", "true", "1", "on")
    ]
    if kills:
        yield failed(
            "sessions",
            f"logging out ends all processes of the session on {fold(kills)}",
            at=Evidence(
                "KillUserProcesses", "yes", "no", "loginctl show-user $USER; cat /etc/systemd/logind.conf", kills[0]
            ),
            nodes=tuple(kills),
            remedy="`loginctl enable-linger $USER`, or start ranks through a scheduler.",
            run=(command("loginctl", "enable-linger", on=kills),),
        )
    elif observed:
        yield passed(f"sessions of {len(observed)} nodes")
