"""One row of the fault matrix: how the fault is made, and which finding or unanswered question it must lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.cluster import Cluster
from tests.end_to_end.running import JOB, SCRIPT

__all__ = ["GPU_SCRIPT", "Fault"]

#: The script of a job that trains on GPUs.
GPU_SCRIPT = SCRIPT.replace('"gloo"', '"nccl"')


@dataclass(frozen=True)
class Fault:
    """A fault of a cluster of four nodes, `node1` to `node4`, each with four shards below /srv/data/shards.

    Args:
        name: what is wrong, in words joined by hyphens.
        inject: makes the fault on the cluster, and undoes it at its end. It may raise `FaultUnavailable`.
        id: the check that must speak.
        nodes: exactly the nodes that its finding names; for an unanswered question, names that its words hold.
        status: `fail`, or `unknown` where all that can be said is that it could not be told.
        severity: of the finding.
        verdict: of the whole run.
        stage: by whose end the fault is named; the check goes no further.
        words: what its message, evidence or remedy must hold.
        job, script, files: the job that is checked: its start script, its training script, and further files by name.
        options: further options of `preflight check`.
        gpus: run on nodes with two stub GPUs each.
        follows: other checks that may find errors of their own because of the same fault; each needs a reason in a
            comment beside the row.
    """

    name: str
    inject: Callable[[Cluster], AbstractContextManager[object]]
    id: str
    nodes: tuple[str, ...]
    status: str = "fail"
    severity: str = "error"
    verdict: str = "no-go"
    stage: str = "node"
    words: tuple[str, ...] = ()
    job: str = JOB
    script: str = SCRIPT
    files: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    gpus: bool = False
    follows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.status in ("fail", "unknown") and self.severity in ("error", "warning", "info")
        assert self.verdict in ("go", "no-go", "incomplete") and self.stage in ("open", "node", "link", "smoke")
