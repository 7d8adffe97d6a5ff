"""What was observed on a node, or why nothing was, and what children said while they ran"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from preflight.lazy.dataclasses import dataclass
from preflight.request import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """The fact, as the probe's return type."""

    value: T


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No fact, and why; `kind` is one of `preflight.node.wire.UNAVAILABLE_KINDS`."""

    kind: str
    reason: str
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class FactRecord:
    """One request and what came of it. Times are seconds since the run began.

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
    """Something a running child said or was seen to do, at `at_s` seconds since the run began (head's clock)."""

    request_key: str
    node: str
    at_s: float
    origin: str
    data: Mapping[str, Any]
