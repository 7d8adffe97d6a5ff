"""Nodes that cannot be reached, or reject logins."""

from __future__ import annotations

from tests.cluster import faults
from tests.fault_matrix.fault import on_node

__all__ = ["FAULTS"]


FAULTS = (
    on_node("node-down", "NOD001", "node4", faults.node_down, stage="open"),
    on_node("sshd-stopped", "NOD001", "node2", faults.sshd_stopped, "nothing listens", stage="open"),
    on_node("sshd-frozen", "NOD001", "node3", faults.sshd_frozen, "does not answer", stage="open"),
    on_node("mtu-black-hole-on-the-way-to-ssh", "NOD001", "node4", faults.mtu_black_hole, "MTU", stage="open"),
    on_node("ssh-port-dropped", "NOD001", "node1", lambda node: faults.drop_port(node, 22), "firewall", stage="open"),
    on_node("ssh-port-rejected", "NOD001", "node1", lambda node: faults.reject_port(node, 22), stage="open"),
    on_node(
        "large-ssh-messages-dropped",
        "NOD001",
        "node3",
        lambda node: faults.drop_large(node, 22),
        "key exchange",
        "MTU",
        stage="open",
    ),
    on_node(
        "ssh-port-prohibited-by-icmp",
        "NOD001",
        "node2",
        lambda node: faults.prohibit_port(node, 22),
        "a firewall rejects the connection",
        stage="open",
    ),
    on_node(
        "login-shell-is-nologin",
        "NOD001",
        "node4",
        lambda node: faults.login_shell(node, "/usr/sbin/nologin"),
        "login shell ended with exit code 1",
        "This account is currently not available",
        stage="open",
    ),
    on_node("login-shell-missing", "NOD001", "node4", lambda node: faults.login_shell(node, "/bin/gone"), stage="open"),
    on_node(
        "start-up-file-exits-without-a-terminal",
        "NOD001",
        "node1",
        lambda node: faults.login_start(node, "case $- in *i*) ;; *) exit 0;; esac\n"),
        "login shell ended with exit code 0",
        "without a terminal",
        stage="open",
    ),
    on_node(
        "start-up-file-refuses-with-words",
        "NOD001",
        "node1",
        lambda node: faults.login_start(node, "echo 'for interactive use only' >&2; exit 3\n"),
        "exit code 3",
        "for interactive use only",
        stage="open",
    ),
    on_node(
        "start-up-file-never-ends",
        "NOD001",
        "node3",
        lambda node: faults.login_start(node, "exec sleep 100\n"),
        "start-up file",
        stage="open",
    ),
    on_node(
        "no-process-for-the-agent",
        "NOD001",
        "node2",
        lambda node: faults.process_limit(node, 4),
        "cannot start another process",
        "pids.max",
        stage="open",
    ),
    on_node(
        "no-process-for-any-probe",
        "NOD006",
        "node3",
        lambda node: faults.process_limit(node, 6),
        "could not start a process",
        "pids.max",
    ),
)
