"""A request: which fact is wanted, from which node, and which claim of the job makes it necessary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from preflight.job import Claim


@dataclass(frozen=True, slots=True)
class Request:
    """One observation to make.

    Args:
        probe: `module:function` of what runs on the node; build it with `probe_name`.
        node: name of the node it runs on.
        peer: for a request between two nodes, the other one. `listen` then names the function that runs on the
            peer meanwhile; its first event is handed to the probe as `params["listening"]`.
        params: JSON values for the probe.
        context: run it in the job context (the ranks' interpreter, directory and environment).
        group: requests of one group run at the same time and are supervised together (the ranks of a smoke run).
        because: claims that make the fact necessary; with `required`, its absence makes the verdict incomplete.
    """

    probe: str
    node: str
    params: Mapping[str, Any] = field(default_factory=dict)
    peer: str = ""
    listen: str = ""
    listen_params: Mapping[str, Any] = field(default_factory=dict)
    context: bool = False
    group: str = ""
    because: tuple[Claim, ...] = ()
    required: bool = False
    deadline_s: float = 5.0

    @property
    def key(self) -> str:
        """Identity of the observation: equal requests of several checks are asked once."""
        return "\t".join(
            (
                self.probe,
                self.node,
                self.peer,
                self.group,
                "context" if self.context else "",
                json.dumps(self.params, sort_keys=True, separators=(",", ":"), default=list),
            )
        )


def probe_name(function: Callable[..., Any]) -> str:
    """How a probe is named on the wire."""
    return f"{function.__module__}:{function.__qualname__}"
