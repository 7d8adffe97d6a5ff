"""Nodes that cannot be reached, or reject logins."""

from __future__ import annotations

from tests.cluster import faults
from tests.fault_matrix.fault import Fault

__all__ = ["FAULTS"]


FAULTS = (
    Fault("node-down", lambda cluster: faults.node_down(cluster.node("node4")), "NOD001", ("node4",), stage="open"),
    Fault(
        "sshd-stopped",
        lambda cluster: faults.sshd_stopped(cluster.node("node2")),
        "NOD001",
        ("node2",),
        stage="open",
        words=("nothing listens",),
    ),
    Fault(
        "sshd-frozen",
        lambda cluster: faults.sshd_frozen(cluster.node("node3")),
        "NOD001",
        ("node3",),
        stage="open",
        words=("does not answer",),
    ),
    Fault(
        "mtu-black-hole-on-the-way-to-ssh",
        lambda cluster: faults.mtu_black_hole(cluster.node("node4")),
        "NOD001",
        ("node4",),
        stage="open",
        words=("MTU",),
    ),
    Fault(
        "ssh-port-dropped",
        lambda cluster: faults.drop_port(cluster.node("node1"), 22),
        "NOD001",
        ("node1",),
        stage="open",
        words=("firewall",),
    ),
    Fault(
        "ssh-port-rejected",
        lambda cluster: faults.reject_port(cluster.node("node1"), 22),
        "NOD001",
        ("node1",),
        stage="open",
    ),
    Fault(
        "large-ssh-messages-dropped",
        lambda cluster: faults.drop_large(cluster.node("node3"), 22),
        "NOD001",
        ("node3",),
        stage="open",
        words=("key exchange", "MTU"),
    ),
    Fault(
        "ssh-port-prohibited-by-icmp",
        lambda cluster: faults.prohibit_port(cluster.node("node2"), 22),
        "NOD001",
        ("node2",),
        stage="open",
        words=("a firewall rejects the connection",),
    ),
    Fault(
        "login-shell-is-nologin",
        lambda cluster: faults.login_shell(cluster.node("node4"), "/usr/sbin/nologin"),
        "NOD001",
        ("node4",),
        stage="open",
        words=("login shell ended with exit code 1", "This account is currently not available"),
    ),
    Fault(
        "login-shell-missing",
        lambda cluster: faults.login_shell(cluster.node("node4"), "/bin/gone"),
        "NOD001",
        ("node4",),
        stage="open",
    ),
    Fault(
        "start-up-file-exits-without-a-terminal",
        lambda cluster: faults.login_start(cluster.node("node1"), "case $- in *i*) ;; *) exit 0;; esac\n"),
        "NOD001",
        ("node1",),
        stage="open",
        words=("login shell ended with exit code 0", "without a terminal"),
    ),
    Fault(
        "start-up-file-refuses-with-words",
        lambda cluster: faults.login_start(cluster.node("node1"), "echo 'for interactive use only' >&2; exit 3\n"),
        "NOD001",
        ("node1",),
        stage="open",
        words=("exit code 3", "for interactive use only"),
    ),
    Fault(
        "start-up-file-never-ends",
        lambda cluster: faults.login_start(cluster.node("node3"), "exec sleep 100\n"),
        "NOD001",
        ("node3",),
        stage="open",
        words=("start-up file",),
    ),
    Fault(
        "no-process-for-the-agent",
        lambda cluster: faults.process_limit(cluster.node("node2"), 4),
        "NOD001",
        ("node2",),
        stage="open",
        words=("cannot start another process", "pids.max"),
    ),
    Fault(
        "no-process-for-any-probe",
        lambda cluster: faults.process_limit(cluster.node("node3"), 6),
        "NOD006",
        ("node3",),
        words=("could not start a process", "pids.max"),
    ),
)
