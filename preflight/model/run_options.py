"""The options of a live run, as the command line and the Python functions take them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from preflight.model.smoke_options import SmokeOptions
from preflight.model.stages import SMOKE, STAGES


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to reach nodes, how far to go, and how long to wait.

    Args:
        hosts: the nodes in rank order, as `node[1-4]` or `a,b,c`; empty to take them from elsewhere.
        hostfile: a file that lists the nodes.
        executor: how to reach nodes; empty chooses by the environment (an allocation, a cluster), otherwise ssh.
        executor_options: `NAME=VALUE` for the executor.
        trust_job: whether to use the hosts, interpreter and environment that the job's files name.
        python: interpreter of the ranks on the nodes.
        directory: working directory of the ranks on the nodes.
        prelude: whether to run the job's setup lines on the nodes.
        allow: keys of `preflight.model.requests.CONSENTS`.
        until: the last stage.
        keep_going: whether to run the smoke stage even after errors that are certain to stop it.
        steps: training steps of the smoke run; None means the check's default.
        gather_deadline, open_deadline, node_deadline, link_deadline, smoke_deadline: seconds for each stage; for
            `link` seconds for each round.
        smoke: options for the smoke run.
    """

    hosts: str = ""
    hostfile: Path | None = None
    executor: str = ""
    executor_options: tuple[str, ...] = ()
    trust_job: bool = False
    python: str = ""
    directory: str = ""
    prelude: bool = False
    allow: tuple[str, ...] = ()
    until: str = "smoke"
    keep_going: bool = False
    steps: int | None = None
    gather_deadline: float = 30.0
    open_deadline: float = 8.0
    node_deadline: float = 10.0
    link_deadline: float = 10.0
    smoke_deadline: float = 60.0
    smoke: SmokeOptions = field(default_factory=SmokeOptions)

    def longest_s(self) -> float:
        """The maximum number of seconds that a run takes once nodes are found, for up to six rounds of links."""
        return self.open_deadline + self.node_deadline + 6 * self.link_deadline + self.smoke_deadline

    def stages(self, verb: str) -> tuple[str, ...]:
        """The stages of a run of this command, in order."""
        return ("node", SMOKE) if verb == SMOKE else STAGES[: STAGES.index(self.until) + 1]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The fields that a command-line option of the same name may set."""
        return tuple(item.name for item in fields(cls) if item.name != "smoke")
