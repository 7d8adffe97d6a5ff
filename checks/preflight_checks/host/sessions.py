"""What of a node can wedge or end a rank beside the job: mounts that hang, sessions that take processes along."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, command, failed, passed, root_command
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, unseen
from preflight_checks.host.machines import plan_machines
from preflight_checks.probes.liveness import ANSWER_S, Liveness, network_mounts
from preflight_checks.probes.machine import machine

#: So long an answer is not hung, and checkpoints and small files through it will be slow.
SLOW_S = 1.0


def _plan_mounts(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        yield Request(probe_name(network_mounts), node.name)


@check(
    "SYS004",
    "network-mount-hangs",
    plan=_plan_mounts,
    probes=(network_mounts,),
    cost="asks every network file system for its free space, each in a process of its own, 2.5 s at most",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("https://github.com/NVIDIA/nvidia-resiliency-ext", "https://github.com/leptonai/gpud"),
)
def network_mount_hangs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every network file system that a node has mounted answers.

    What it checks: NFS, Lustre, GPFS, Ceph, FUSE and the like are asked for their free space; no answer within 2.5 s,
    an error (a stale handle), or more than a second on one node where others are quick.

    Why it matters: whatever touches a hung mount waits for ever and cannot be killed: `df`, a shell that looks for a
    program on its PATH, an import that walks sys.path, the clean-up of the job.

    Example: /home2 of node5 hangs since its server was replaced, and the job's users have it in their PATH.

    Fix: `umount -l` it, or bring the server back.

    Known limits: what is mounted only when it is looked at (autofs) is left alone. Paths of the job itself are looked
    at by DAT011 and CKP011, which ask for them.

    Evidence: the storage checks of nvidia-resiliency-ext and of gpud.
    """
    have = facts.observed(network_mounts)
    yield from unseen(facts, network_mounts, "network file systems")
    ill: dict[tuple[str, str], list[str]] = {}
    slow: dict[str, list[Liveness]] = {}
    for node, mounts in have.items():
        for mount in mounts:
            if mount.problem:
                ill.setdefault((mount.point, mount.problem), []).append(node)
            elif mount.took_s > SLOW_S:
                slow.setdefault(node, []).append(mount)
    for (point, problem), nodes in ill.items():
        what = f"does not answer within {ANSWER_S:g} s" if problem == "timeout" else f"fails: {problem}"
        mount = next(m for m in have[nodes[0]] if m.point == point)
        yield failed(
            f"{point}: {problem}",
            f"{point} ({mount.kind} of {mount.source}) {what} on {fold(nodes)}",
            at=Evidence("network file system", what, "an answer", f"timeout 3 stat -f {point}", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"`umount -l {point}` on {fold(nodes)}, or bring {mount.source} back.",
            run=(root_command("umount", "-l", point, on=nodes),),
        )
    if slow and len(slow) * 2 < len(have):
        node, mounts = next(iter(slow.items()))
        worst = max(mounts, key=lambda mount: mount.took_s)
        yield failed(
            "slow",
            f"{worst.point} took {worst.took_s:.1f} s to answer on {node}, and less on most nodes",
            at=Evidence(
                "network file system", f"{worst.took_s:.1f} s", f"below {SLOW_S:g} s", f"stat -f {worst.point}", node
            ),
            nodes=tuple(slow),
            remedy=f"See how {fold(slow)} reaches {worst.source}.",
            severity=Severity.INFO,
        )
    elif have and not ill:
        yield passed(f"network file systems of {len(have)} nodes")


@check(
    "SYS005",
    "session-ends-processes",
    plan=plan_machines,
    probes=(machine,),
    cost="reads /etc/systemd/logind.conf",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    evidence=("https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html",),
)
def session_ends_processes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The end of a login does not end ranks that were started from it.

    What it checks: whether KillUserProcesses is switched on in logind.conf.

    Why it matters: `ssh node nohup torchrun ... &` then ends with the ssh, also with nohup, tmux or setsid, and the
    other nodes wait.

    Example: `KillUserProcesses=yes` on a site's nodes, and a launcher that goes away after it started the ranks.

    Fix: `loginctl enable-linger USER`, `systemd-run --user --scope`, or a scheduler.

    Known limits: what a drop-in elsewhere than below /etc says is not seen. Ranks of a scheduler are not meant.

    Evidence: logind.conf(5).
    """
    have = facts.observed(machine)
    yield from unseen(facts, machine, "sessions")
    kills = [
        node for node, value in have.items() if value.logind.get("KillUserProcesses") in ("yes", "true", "1", "on")
    ]
    if kills:
        yield failed(
            "sessions",
            f"the end of a login ends all processes that were started from it on {fold(kills)}",
            at=Evidence(
                "KillUserProcesses", "yes", "no", "loginctl show-user $USER; cat /etc/systemd/logind.conf", kills[0]
            ),
            nodes=tuple(kills),
            remedy="`loginctl enable-linger $USER`, or start ranks through a scheduler.",
            run=(command("loginctl", "enable-linger", on=kills),),
        )
    elif have:
        yield passed(f"sessions of {len(have)} nodes")
