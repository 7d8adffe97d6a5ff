"""One row of the fault matrix: how the fault is injected, and the finding or unknown that must result.

The modules of this folder inject the faults; expected.toml lists the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from preflight._util import toml
from tests.cluster import Cluster, Node
from tests.end_to_end.head_command import JOB, SCRIPT

__all__ = ["EXPECTED", "GPU_SCRIPT", "Fault", "fault", "on_node"]

#: What must be reported of each fault, by its name.
EXPECTED = toml.beside(__file__, "expected.toml")

#: The script of a job that trains on GPUs.
GPU_SCRIPT = SCRIPT.replace('"gloo"', '"nccl"')


@dataclass(frozen=True)
class Fault:
    """A fault of a cluster of four nodes, `node1` to `node4`, each with four shards below /srv/data/shards.

    Args:
        name: the fault, in words joined by hyphens.
        inject: injects the fault into the cluster, and undoes it at its end. It may raise `FaultUnavailable`.
        id: the check that must report it.
        nodes: exactly the nodes of its finding; for an unknown, the names in its message.
        status: `fail`, or `unknown` if the check cannot decide.
        severity: of the finding.
        verdict: of the whole run; by default that of the one finding or unknown.
        stage: the last stage of the check; the fault is named by its end.
        words: required parts of its message, evidence or remedy.
        job, script, files: the job that is checked: its start script, its training script, and further files by name.
        options: further options of `preflight check`.
        gpus: run on nodes with two stub GPUs each.
        follows: other checks that may find errors of their own because of the same fault; each needs a reason in a
            comment beside it.
    """

    name: str
    inject: Callable[[Cluster], AbstractContextManager[object]]
    id: str
    nodes: tuple[str, ...]
    status: str = "fail"
    severity: str = "error"
    verdict: str = ""
    stage: str = "node"
    words: tuple[str, ...] = ()
    job: str = JOB
    script: str = SCRIPT
    files: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    gpus: bool = False
    follows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.verdict:
            usual = "incomplete" if self.status == "unknown" else "no-go" if self.severity == "error" else "go"
            object.__setattr__(self, "verdict", usual)
        assert self.status in ("fail", "unknown") and self.severity in ("error", "warning", "info")
        assert self.verdict in ("go", "no-go", "incomplete") and self.stage in ("open", "node", "link", "smoke")


def fault(name: str, inject: Callable[[Cluster], AbstractContextManager[object]], **job: Any) -> Fault:
    """The row of this name: how its fault is made and in which job, and what must be reported of it."""
    return Fault(name, inject, **toml.with_tuples(EXPECTED[name]), **job)


def on_node(name: str, node: str, make: Callable[[Node], AbstractContextManager[object]], **job: Any) -> Fault:
    """A fault of one node."""
    return fault(name, lambda cluster: make(cluster.node(node)), **job)
