"""Parameter servers and workers with contradictory configurations, or with links that fail only in the smoke run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cluster import Cluster, faults
from tests.end_to_end.head_command import SERVER_JOB, SERVER_SCRIPT

from .fault import Fault, fault

__all__ = ["FAULTS"]

#: Each node's environment gives the role of its process, as a manifest does for pods.
_BY_NODE = """\
#!/usr/bin/env bash
export TRAINING_ROLE=$TRAINING_ROLE PADDLE_TRAINER_ID=$PADDLE_TRAINER_ID
python train.py
"""
#: Servers and workers run in this Unix group and the probes of the link stage do not, so that a filter can tell them
#: apart.
_GROUP = 4242
_PYTHON = "/srv/python-of-the-job"


@contextmanager
def _lost(cluster: Cluster, *pairs: tuple[str, str]) -> Iterator[None]:
    """Packets of servers and workers between the nodes of each pair are dropped."""
    with ExitStack() as undo:
        for node in cluster.nodes:
            node.write_text(_PYTHON, f'#!/bin/sh\nexec setpriv --regid={_GROUP} --clear-groups {sys.executable} "$@"\n')
            node.must(["chmod", "755", _PYTHON])
        for a, b in pairs:
            undo.enter_context(faults.drop_of_group(cluster.node(a), _GROUP, cluster.node(b)))
            undo.enter_context(faults.drop_of_group(cluster.node(b), _GROUP, cluster.node(a)))
        yield


_LIST = "10.77.0.1:6170,10.77.0.2:6170"
_RIGHT: dict[str, dict[str, str]] = {
    "node1": {"TRAINING_ROLE": "PSERVER", "POD_IP": "10.77.0.1", "PADDLE_PORT": "6170"},
    "node2": {"TRAINING_ROLE": "PSERVER", "POD_IP": "10.77.0.2", "PADDLE_PORT": "6170"},
    "node3": {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0"},
    "node4": {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"},
}


@contextmanager
def _environment_fault(cluster: Cluster, node: str, changes: dict[str, str]) -> Iterator[None]:
    """Every node's environment gives its role; one differs."""
    with ExitStack() as undo:
        for name, variables in _RIGHT.items():
            own = {"PADDLE_PSERVERS_IP_PORT_LIST": _LIST, "PADDLE_TRAINERS_NUM": "2", **variables}
            own |= changes if name == node else {}
            undo.enter_context(faults.session_variables(cluster.node(name), **own))
        yield


def _path(name: str, *pairs: tuple[str, str]) -> Fault:
    return fault(
        name,
        lambda cluster: _lost(cluster, *pairs),
        job=SERVER_JOB,
        script=SERVER_SCRIPT,
        options=("--python", _PYTHON),
    )


def _mismatch(name: str, node: str, changes: dict[str, str]) -> Fault:
    """One node has another configuration."""
    return fault(
        name,
        lambda cluster: _environment_fault(cluster, node, changes),
        job=_BY_NODE,
        script=SERVER_SCRIPT,
        options=("--keep-going",),
    )


#: Checks of variables (ENV020, ENV022) see before the run that nodes differ, or that a variable is invalid; the effect
#: is visible only in the run.
FAULTS = (
    _path("path-between-worker-and-server", ("node4", "node2")),
    _path("server-cut-off-from-workers", ("node3", "node2"), ("node4", "node2")),
    _path("worker-cut-off-from-servers", ("node4", "node1"), ("node4", "node2")),
    _mismatch("two-trainers-with-one-index", "node4", {"PADDLE_TRAINER_ID": "0"}),
    _mismatch("trainers-disagree-on-their-number", "node4", {"PADDLE_TRAINERS_NUM": "3"}),
    _mismatch("trainer-without-an-index", "node4", {"PADDLE_TRAINER_ID": ""}),
    _mismatch("role-that-does-not-exist", "node2", {"TRAINING_ROLE": "SERVER"}),
    _mismatch("server-endpoint-in-no-list", "node2", {"POD_IP": "10.77.0.9"}),
    _mismatch(
        "list-of-servers-in-another-order", "node4", {"PADDLE_PSERVERS_IP_PORT_LIST": "10.77.0.2:6170,10.77.0.1:6170"}
    ),
)
