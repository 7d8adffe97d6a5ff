"""A request: which fact is wanted, from which node, and which claim of the job makes it necessary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from preflight.job import Claim
from preflight.lazy.dataclasses import dataclass

#: What a probe may do only where the user allowed it (`check --allow`).
CONSENTS = {
    "write": "writes a file of 4 KiB into folders that the job writes to, and removes it",
    "metadata": "asks the cloud's own service at 169.254.169.254 about the node",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One observation to make.

    Args:
        probe: `module:function` of what runs on the node; build it with `probe_name`.
        node: name of the node it runs on.
        params: JSON values for the probe.
        peers: for a request between nodes, the others. `listen` then names the probe that runs on each of them
            meanwhile, by a request of its own; what those said when they began to listen is handed to this probe as
            `params["listening"]`, by peer.
        exclusive: it measures, so none of its nodes takes part in another such request at the same time.
        context: run it in the job context (the ranks' interpreter, directory and environment).
        group: requests of one group run at the same time and are supervised together (the ranks of a smoke run).
        consent: what the user must have allowed (a key of CONSENTS); without it the observation is not made.
        because: claims that make the fact necessary; with `required`, its absence makes the verdict incomplete.
    """

    probe: str
    node: str
    params: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    listen: str = ""
    exclusive: bool = False
    context: bool = False
    group: str = ""
    consent: str = ""
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
                ",".join(self.peers),
                self.group,
                "context" if self.context else "",
                self.spelled_params,
            )
        )

    @property
    def spelled_params(self) -> str:
        """The parameters as text, the same for equal ones."""
        return json.dumps(self.params, sort_keys=True, separators=(",", ":"), default=list)


def probe_name(function: Callable[..., Any]) -> str:
    """How a probe is named on the wire."""
    return f"{function.__module__}:{function.__qualname__}"
