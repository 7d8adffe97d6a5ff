"""A recording: everything a verdict depends on, so that `judge` needs no cluster.

Live `check` makes a recording and then judges it; nothing reaches a verdict on another way.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from preflight.configuration import Configuration as Configuration
from preflight.document import schema_of, to_bytes
from preflight.job import Job
from preflight.request import Request, probe_name

SCHEMA_VERSION: Literal[1] = 1

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
class Node:
    """A node of the job, in rank order. `address` is where the executor reaches it, as the user gave it."""

    name: str
    index: int
    address: str = ""
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """How reaching a node went. `problem` is empty when its agent answered."""

    node: Node
    problem: str = ""
    problem_kind: str = ""
    host: str = ""
    python: str = ""
    user: str = ""
    boot_id: str = ""
    clock_offset_s: float | None = None
    round_trip_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FactRecord:
    """One request and what came of it. Times are seconds since the run began."""

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


@dataclass(frozen=True, slots=True)
class StageRecord:
    """When a stage ran, or why it did not."""

    name: str
    started_s: float
    finished_s: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class UnplannedCheck:
    """A check that crashed while planning for a job, so that its facts were never asked for."""

    id: str
    job: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Claims, configuration, time, versions, requests, facts and events of one run.

    `created` is the wall time in ISO 8601 with offset; `interrupted` the exit code of a run ended from outside.
    """

    jobs: tuple[Job, ...]
    created: str
    tool_version: str
    configuration: Configuration = field(default_factory=Configuration)
    verb: str = "lint"
    executor: str = ""
    context_provenance: str = ""
    nodes: tuple[NodeRecord, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    facts: tuple[FactRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    unplanned: tuple[UnplannedCheck, ...] = ()
    interrupted: int = 0
    schema_version: Literal[1] = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.interrupted not in (0, 130, 143):
            raise ValueError(f"interrupted is 130 or 143, or 0 for a run to its end, not {self.interrupted}")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes of the job as far as known: all expected ones, and which of them answered."""

    records: tuple[NodeRecord, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every expected node, in rank order."""
        return tuple(record.node for record in self.records)

    @property
    def reached(self) -> tuple[Node, ...]:
        """The nodes whose agent answered."""
        return tuple(record.node for record in self.records if not record.problem)

    @property
    def master(self) -> Node | None:
        """The node of rank 0."""
        return self.records[0].node if self.records else None


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """One recorded observation as a check sees it."""

    request: Request
    fact: Observed[T] | Unavailable
    started_s: float
    finished_s: float

    @property
    def node(self) -> str:
        """The node it was made on."""
        return self.request.node

    @property
    def peer(self) -> str:
        """The other node of a pair; empty otherwise."""
        return self.request.peer


class Facts:
    """The facts of a recording, typed by the probes that observed them.

    In which order answers arrive differs from run to run, so they are kept by request.
    """

    def __init__(self, records: tuple[FactRecord, ...] = (), events: tuple[EventRecord, ...] = ()) -> None:
        self._records = records
        self._events = events
        self._by_probe: dict[str, list[FactRecord]] = {}
        for record in sorted(records, key=lambda record: record.request.key):
            self._by_probe.setdefault(record.request.probe, []).append(record)
        # A fleet of 512 nodes asks for each of them; each fact is validated and looked for once.
        self._seen: dict[Callable[..., Any], dict[str, list[Seen[Any]]]] = {}

    def each(self, probe: Callable[..., T]) -> Iterator[Seen[T]]:
        """Every observation of `probe`, by node; values checked against its return type."""
        for seen in self._of_probe(probe).values():
            yield from seen

    def of(self, probe: Callable[..., T], node: str) -> Observed[T] | Unavailable:
        """The (first) observation of `probe` on `node`; Unavailable when nobody asked."""
        for seen in self._of_probe(probe).get(node, ()):
            return seen.fact
        return Unavailable("blocked", "it was not asked for")

    def observed(self, probe: Callable[..., T]) -> dict[str, T]:
        """The values of `probe` by node, of those nodes where it could be observed."""
        found: dict[str, T] = {}
        for seen in self.each(probe):
            if isinstance(seen.fact, Observed):
                found.setdefault(seen.node, seen.fact.value)
        return found

    def events(self, key: str = "") -> tuple[EventRecord, ...]:
        """Events of the request with this key (all of them without one), in time order."""
        return tuple(event for event in self._events if not key or event.request_key == key)

    @property
    def records(self) -> tuple[FactRecord, ...]:
        """All records as they were made."""
        return self._records

    def _of_probe(self, probe: Callable[..., T]) -> dict[str, list[Seen[T]]]:
        if probe not in self._seen:
            by_node: dict[str, list[Seen[Any]]] = {}
            for record in self._by_probe.get(probe_name(probe), ()):
                seen = Seen(record.request, _typed(record, probe), record.started_s, record.finished_s)
                by_node.setdefault(record.request.node, []).append(seen)
            self._seen[probe] = by_node
        return self._seen[probe]


def _typed(record: FactRecord, probe: Callable[..., T]) -> Observed[T] | Unavailable:
    if record.unavailable is not None:
        return record.unavailable
    try:
        return Observed(_adapter(probe).validate_python(record.value))
    except ValueError as error:
        return Unavailable("crashed", f"the node sent a fact of another shape: {_said(error)}")


def _said(error: ValueError) -> str:
    """What a validator complains of, as `place: complaint`, the first three of it."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [": ".join(filter(None, (_path(problem["loc"]), problem["msg"]))) for problem in problems[:3]]
    return "; ".join(shown) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _path(location: tuple[int | str, ...]) -> str:
    """`facts[3].request.node` for the steps that lead there."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


@functools.cache
def _adapter(probe: Callable[..., Any]) -> Any:
    """A validator for the return type of `probe`, made once."""
    from pydantic import TypeAdapter

    function = inspect.unwrap(probe)
    return TypeAdapter(typing.get_type_hints(function).get("return", object))


def save(recording: Recording) -> bytes:
    """The recording as JSON."""
    return to_bytes(recording, indent=1)


def load(data: bytes) -> Recording:
    """Read a recording back. Raises ValueError that says where the document is wrong."""
    try:
        loaded = _recording_adapter().validate_json(data)
    except ValueError as error:
        raise ValueError(_said(error)) from None
    assert isinstance(loaded, Recording)
    return loaded


@functools.cache
def _recording_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Recording)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `save` writes."""
    return schema_of(_recording_adapter(), "preflight recording")
