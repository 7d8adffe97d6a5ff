"""A request: the fact that is needed, the node to observe, and the claims of the job that make it necessary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from preflight.model.job import Claim


@dataclass(frozen=True, slots=True)
class Request:
    """One observation to make.

    Args:
        probe: `module:function` of the code that runs on the node; build it with `probe_name`.
        node: name of the node it runs on.
        params: JSON values for the probe.
        peers: for a request between nodes, the other nodes. `listen` then names the probe that runs on each of them
            meanwhile, by a request of its own; the reports that they sent when they began to listen are passed to this
            probe as `params["listening"]`, by peer.
        exclusive: whether it measures, so that none of its nodes has another such request at the same time.
        context: whether to run it in the job context (the ranks' interpreter, directory and environment).
        group: requests of one group run at the same time and are supervised together (the ranks of a smoke run).
        consent: what the user must have allowed (`check --allow`), or the observation is not made: `write` writes a
            file of 4 KiB into a folder that the job writes to, `metadata` queries the cloud's metadata service.
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
        """The identity of the observation: equal requests of several checks are sent once."""
        return "\t".join(
            (
                self.probe,
                self.node,
                ",".join(self.peers),
                self.group,
                "context" if self.context else "",
                self.params_text,
            )
        )

    @property
    def params_text(self) -> str:
        """The parameters as a string that is the same for equal parameters."""
        return json.dumps(self.params, sort_keys=True, separators=(",", ":"), default=list)


def probe_name(function: Callable[..., Any]) -> str:
    """The name of a probe on the wire."""
    return f"{function.__module__}:{function.__qualname__}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """The fact, as the probe's return type."""

    value: T


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing fact, with the reason; `kind` is one of `preflight.agent.wire.UNAVAILABLE_KINDS`."""

    kind: str
    reason: str
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class FactRecord:
    """One request and its result. Times are seconds since the run began.

    `value` is JSON as the node sent it.
    """

    request: Request
    value: Any = None
    unavailable: Unavailable | None = None
    started_s: float = 0.0
    finished_s: float = 0.0
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A message or observed event of a running child, at `at_s` seconds since the run began (head's clock)."""

    request_key: str
    node: str
    at_s: float
    origin: str
    data: Mapping[str, Any]
