"""Slurm on the virtual nodes: slurmctld on the head, slurmd on every node, munge between them, as Debian packages them.

The configuration avoids problems of a test machine: slurmd wants a cgroup mount unless told otherwise, simulated GRES
puts nodes into `inval` without `config_overrides`, and without systemd processes are tracked by their parents.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from .cluster import Cluster
from .namespace import ClusterError, NodeProcess
from .node import Node, wait_until

__all__ = ["Slurm", "needs_slurm", "require_slurm", "slurm"]

_TOOLS = {
    "/usr/sbin/slurmctld": "slurmctld",
    "/usr/sbin/slurmd": "slurmd",
    "srun": "slurm-client",
    "/usr/sbin/munged": "munge",
}
_FOLDERS = ("/run/munge", "/run/slurm/state", "/run/slurm/spool")
#: Slow machines take seconds until all nodes are idle.
_UP_WITHIN_S = 20.0

_CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=2
SlurmdTimeout=300
MessageTimeout=10
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1
{extra}
NodeName={nodes} CPUs=4 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
{partitions}
"""


def needs_slurm() -> list[str]:
    """The reasons why Slurm cannot be run here; empty if it can."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [
        f"{tool} is missing (Debian package: {package})"
        for tool, package in _TOOLS.items()
        if shutil.which(tool, path=path) is None
    ]


def require_slurm() -> None:
    """Skip with the reason if Slurm is not installed; fail instead if CI=true."""
    reasons = needs_slurm()
    if not reasons:
        return
    message = f"Slurm is not possible here: {'; '.join(reasons)}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message} (a failure and not a skip, because CI=true)", pytrace=False)
    pytest.skip(message)


@dataclass
class Slurm:
    """A running Slurm; commands of it run on the head."""

    cluster: Cluster
    daemons: dict[str, NodeProcess]

    def control(self, *arguments: str) -> str:
        """`scontrol` with these arguments; what it prints."""
        return self.cluster.head.must(["scontrol", *arguments])

    def jobs(self) -> list[str]:
        """The ids of all jobs that are not over."""
        states = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING"
        return self.cluster.head.must(["squeue", "--noheader", "--format=%i", f"--states={states}"]).split()

    def states(self) -> dict[str, str]:
        """The state of each node, as reported by sinfo."""
        lines = self.cluster.head.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], timeout=10).stdout
        return dict(line.split() for line in lines.splitlines())

    @contextmanager
    def allocation(self, *arguments: str) -> Iterator[str]:
        """Resources without a step, until the end of the block; the id of the job."""
        command = ["salloc", "--no-shell", "--immediate=10", *arguments]
        done = self.cluster.head.run(command, timeout=20)
        words = done.stderr.split()
        if done.returncode or "allocation" not in words:
            raise ClusterError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        job = words[words.index("allocation") + 1]
        try:
            yield job
        finally:
            self.cluster.head.run(["scancel", job])
            wait_until(lambda: job not in self.jobs(), 10, f"job {job} to be over")

    def environment(self, job: str) -> dict[str, str]:
        """The variables by which a batch script of this job finds its allocation."""
        said = dict(
            part.split("=", 1) for part in self.control("show", "job", job, "--oneliner").split() if "=" in part
        )
        return {
            "SLURM_JOB_ID": job,
            "SLURM_JOBID": job,
            "SLURM_JOB_NODELIST": said["NodeList"],
            "SLURM_NODELIST": said["NodeList"],
            "SLURM_JOB_NUM_NODES": said["NumNodes"],
            "SLURM_NNODES": said["NumNodes"],
            "SLURM_JOB_PARTITION": said["Partition"],
            "SLURM_CLUSTER_NAME": "virtual",
        }

    def start(self, node: Node, daemon: str, *arguments: str) -> None:
        """Start a daemon in the foreground, as a process of ours."""
        name = os.path.basename(daemon)  # noqa: PTH119
        log = subprocess.DEVNULL
        process = node.popen([daemon, *arguments], stdout=log, stderr=log)
        self.daemons[f"{node.name}/{name}"] = process

    def stop(self, node: Node, name: str, signal_name: str = "KILL") -> None:
        """End a daemon, or send it another signal. Its pid is that of its own file."""
        node.run(["pkill", f"-{signal_name}", "-x", name])

    @contextmanager
    def slurmd_dead(self, node: Node) -> Iterator[None]:
        """The slurmd of one node is killed; the controller does not know it yet."""
        self.stop(node, "slurmd")
        try:
            yield
        finally:
            self.start(node, "/usr/sbin/slurmd", "-D")
            self.listening(node)
            self.idle()

    @contextmanager
    def slurmd_frozen(self, node: Node) -> Iterator[None]:
        """The slurmd of one node accepts connections and does not answer."""
        self.stop(node, "slurmd", "STOP")
        try:
            yield
        finally:
            self.stop(node, "slurmd", "CONT")

    @contextmanager
    def drained(self, node: Node, reason: str = "bad cable") -> Iterator[None]:
        """An administrator drained the node; running jobs continue."""
        self.control("update", f"nodename={node.name}", "state=drain", f"reason={reason}")
        try:
            yield
        finally:
            self.control("update", f"nodename={node.name}", "state=resume")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Another job holds all nodes."""
        with self.allocation("--exclusive", f"--nodes={len(self.cluster.nodes)}"):
            yield

    @contextmanager
    def controller_gone(self) -> Iterator[None]:
        """slurmctld is killed; the daemons on the nodes keep running."""
        self.stop(self.cluster.head, "slurmctld")
        try:
            yield
        finally:
            self.start(self.cluster.head, "/usr/sbin/slurmctld", "-D")
            self.idle()

    def listening(self, node: Node) -> None:
        """Wait until slurmd of a node can be connected to."""
        look = ["sh", "-c", "ss -Hltn | grep -q ':6818 '"]
        wait_until(lambda: node.run(look).returncode == 0, _UP_WITHIN_S, f"slurmd on {node.name} to listen")

    def idle(self, names: Sequence[str] = ()) -> None:
        """Wait until nodes (all of them, if none is named) can take work."""
        wanted = names or [node.name for node in self.cluster.nodes]

        def ready() -> bool:
            states = self.states()
            return all(states.get(name) in ("idle", "mixed", "allocated") for name in wanted)

        wait_until(ready, _UP_WITHIN_S, "Slurm's nodes to be idle")


@contextmanager
def slurm(
    cluster: Cluster,
    *,
    partitions: Sequence[str] = ("PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP",),
    extra: Sequence[str] = (),
    gpus: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Slurm]:
    """Slurm on `cluster`, until the end of the block; `partitions` and `extra` are lines of slurm.conf."""
    machines = [cluster.head, *cluster.nodes]
    text = _CONFIGURATION.format(
        nodes=",".join(node.name for node in cluster.nodes),
        partitions="\n".join(partitions),
        extra="\n".join(extra),
        gpus=gpus,
    )
    running = Slurm(cluster, {})
    with ExitStack() as stack:
        stack.callback(_end, running)
        for node in machines:
            _prepare(node, text, gpus)
            running.start(node, "/usr/sbin/munged", "--foreground", "--force", "--key-file=/run/munge/munge.key")
        for node in machines:
            wait_until(lambda node=node: node.path("/run/munge/munge.socket.2").exists(), 10, f"munged on {node.name}")  # type: ignore[misc]
        running.start(cluster.head, "/usr/sbin/slurmctld", "-D")
        for node in cluster.nodes:
            running.start(node, "/usr/sbin/slurmd", "-D")
        running.idle()
        yield running


def _prepare(node: Node, text: str, gpus: int) -> None:
    # Otherwise it would recover the state of an earlier instance.
    node.must(["rm", "-rf", "/run/slurm", "/run/munge"])
    node.must(["mkdir", "-p", *_FOLDERS])
    node.path("/run/munge/munge.key").write_bytes(b"k" * 1024)
    node.path("/run/munge/munge.key").chmod(0o600)
    node.write_text("/etc/slurm/slurm.conf", text)
    devices = [f"/run/slurm/gpu{index}" for index in range(gpus)]
    node.must(["touch", *devices])
    node.write_text("/etc/slurm/gres.conf", "".join(f"Name=gpu File={device}\n" for device in devices))
    node.write_text("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
    node.write_text("/etc/slurm/plugstack.conf", "")


def _end(running: Slurm) -> None:
    for node in running.cluster.nodes:
        running.stop(node, "slurmstepd")
        running.stop(node, "slurmd")
    running.stop(running.cluster.head, "slurmctld")
    for node in (running.cluster.head, *running.cluster.nodes):
        running.stop(node, "munged")
    for process in running.daemons.values():
        process.kill_session()
        process.wait(timeout=10)
