"""Slurm with dead daemons or unavailable nodes, and an MPI that differs between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.cluster import Cluster
from tests.cluster.faults import FaultUnavailable
from tests.cluster.faults.services import helper_gone
from tests.cluster.slurm import Slurm, needs_slurm, slurm

from .fault import Fault

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
    Fault(
        "slurmd-dead",
        _within(lambda running: running.slurmd_dead(running.cluster.node("node3"))),
        "NOD001",
        ("node3",),
        stage="open",
        words=("slurmd is dead",),
        options=_SLURM,
    ),
    Fault(
        "slurmd-frozen",
        _within(lambda running: running.slurmd_frozen(running.cluster.node("node2"))),
        "NOD001",
        ("node2",),
        stage="open",
        words=("slurmd there accepts connections",),
        options=_SLURM,
    ),
    Fault(
        "slurm-drains-a-node",
        _within(lambda running: running.drained(running.cluster.node("node4"), "bad cable")),
        "ALC004",
        ("node4",),
        words=("bad cable",),
        options=_SLURM,
    ),
    Fault(
        "slurm-has-no-node-free",
        _within(lambda running: running.held()),
        "NOD003",
        (),
        status="unknown",
        words=("no nodes were free",),
        options=_SLURM,
    ),
    Fault(
        "slurm-controller-gone",
        _within(lambda running: running.controller_gone()),
        "NOD003",
        (),
        status="unknown",
        options=_SLURM,
    ),
    Fault(
        "mpi-helper-missing",
        lambda cluster: helper_gone(cluster, "node2"),
        "NOD001",
        ("node2",),
        stage="open",
        words=("MPI's own helper cannot be started there",),
        options=_MPI,
    ),
)
