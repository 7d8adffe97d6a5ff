"""How and how far a live check looks, as the command line and the functions of Python take it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from preflight.engine import SMOKE
from preflight.judgement import STAGES
from preflight.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How and how far to look. Deadlines are seconds; `until` is the last stage.

    `executor` empty means what the surroundings say (an allocation, a cluster), else ssh; `executor_options` are
    `NAME=VALUE` for it. `allow` holds keys of `preflight.request.CONSENTS`. `steps` is the number of training steps of
    the smoke run; None leaves it to the check.
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

    def longest_s(self) -> float:
        """How long a run takes at the most once there are nodes; rounds of links beyond the first few are rare."""
        return self.open_deadline + self.node_deadline + 6 * self.link_deadline + self.smoke_deadline

    def stages(self, verb: str) -> tuple[str, ...]:
        """The stages of a run of this verb, in order."""
        return ("node", SMOKE) if verb == SMOKE else STAGES[: STAGES.index(self.until) + 1]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The names the command line may set."""
        return tuple(field.name for field in fields(cls))
