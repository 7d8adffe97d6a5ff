"""Nodes that cannot be reached or reject logins, Slurm with dead daemons or unavailable nodes, an MPI that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.cluster import Cluster, faults
from tests.cluster.faults import FaultUnavailable
from tests.cluster.faults.services import helper_gone
from tests.cluster.slurm import Slurm, needs_slurm, slurm

from .fault import fault, on_node

__all__ = ["FAULTS"]

#: Through an allocation of all four nodes that preflight requests.
_SLURM = ("--on", "slurm", "--hosts", "node[1-4]", "--gather-deadline", "4")
_MPI = ("--on", "mpi", "--on-option", "program=mpirun.openmpi", "--hosts", "node[1-4]")


def _within(
    fault: Callable[[Slurm], AbstractContextManager[None]],
) -> Callable[[Cluster], AbstractContextManager[None]]:
    """The fault on a cluster with a running Slurm."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        if reasons := needs_slurm():
            raise FaultUnavailable("; ".join(reasons))
        with slurm(cluster) as running, fault(running):
            yield

    return inject


FAULTS = (
    on_node("node-down", "node4", faults.node_down),
    on_node("sshd-stopped", "node2", faults.sshd_stopped),
    on_node("sshd-frozen", "node3", faults.sshd_frozen),
    on_node("mtu-black-hole-on-the-way-to-ssh", "node4", faults.mtu_black_hole),
    on_node("ssh-port-dropped", "node1", lambda node: faults.drop_port(node, 22)),
    on_node("ssh-port-rejected", "node1", lambda node: faults.reject_port(node, 22)),
    on_node("large-ssh-messages-dropped", "node3", lambda node: faults.drop_large(node, 22)),
    on_node("ssh-port-prohibited-by-icmp", "node2", lambda node: faults.prohibit_port(node, 22)),
    on_node("login-shell-is-nologin", "node4", lambda node: faults.login_shell(node, "/usr/sbin/nologin")),
    on_node("login-shell-missing", "node4", lambda node: faults.login_shell(node, "/bin/gone")),
    on_node(
        "start-up-file-exits-without-a-terminal",
        "node1",
        lambda node: faults.login_start(node, "case $- in *i*) ;; *) exit 0;; esac\n"),
    ),
    on_node(
        "start-up-file-refuses-with-words",
        "node1",
        lambda node: faults.login_start(node, "echo 'for interactive use only' >&2; exit 3\n"),
    ),
    on_node("start-up-file-never-ends", "node3", lambda node: faults.login_start(node, "exec sleep 100\n")),
    on_node("no-process-for-the-agent", "node2", lambda node: faults.process_limit(node, 4)),
    on_node("no-process-for-any-probe", "node3", lambda node: faults.process_limit(node, 6)),
    fault("slurmd-dead", _within(lambda running: running.slurmd_dead(running.cluster.node("node3"))), options=_SLURM),
    fault(
        "slurmd-frozen", _within(lambda running: running.slurmd_frozen(running.cluster.node("node2"))), options=_SLURM
    ),
    fault(
        "slurm-drains-a-node",
        _within(lambda running: running.drained(running.cluster.node("node4"), "bad cable")),
        options=_SLURM,
    ),
    fault("slurm-has-no-node-free", _within(lambda running: running.held()), options=_SLURM),
    fault("slurm-controller-gone", _within(lambda running: running.controller_gone()), options=_SLURM),
    fault("mpi-helper-missing", lambda cluster: helper_gone(cluster, "node2"), options=_MPI),
)
