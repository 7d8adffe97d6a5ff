"""Requests to nodes, and the facts that answer them.

Ten thousand nodes get the same thirty requests. Separate objects would take longer to create than to judge; with
columns, an object is created only when a check uses it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, overload

from preflight._util.validation import format_errors, type_adapter
from preflight.model.job import Claim


@dataclass(frozen=True, slots=True)
class Request:
    """One observation to make.

    Args:
        probe: `module:function` of the code that runs on the node, from `probe_name`.
        node: the name of the node on which the probe runs.
        params: the JSON values for the probe.
        peers: the other nodes of a request between nodes.
        listen: the name of the probe that runs on each peer at the same time, by a request of its own. The reports that
            the peers sent when they began to listen are passed to the probe as `params["listening"]`, by peer.
        exclusive: whether the probe measures, so that none of its nodes may have another such request at the same time.
        context: whether to run the probe in the job context (the ranks' interpreter, directory and environment).
        group: a name for requests that run at the same time and are supervised together (the ranks of a smoke run).
        consent: the action that the user must have allowed (`check --allow`), otherwise the observation is not made:
            `write` writes a file of 4 KiB into a folder that the job writes to; `metadata` queries the cloud's metadata
            service.
        because: the claims that make the fact necessary.
        required: whether the verdict is incomplete without the fact.
        deadline_s: the time limit of the probe in seconds.
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
        """Return the identity of the observation: equal requests of several checks are sent once."""
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
        """Return the parameters as a string that is the same for equal parameters."""
        return json.dumps(self.params, sort_keys=True, separators=(",", ":"), default=list)


def probe_name(function: Callable[..., Any]) -> str:
    """Return the name of a probe on the wire."""
    return f"{function.__module__}:{function.__qualname__}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A fact, as the return type of its probe."""

    value: T


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing fact and the reason; `kind` is one of `preflight.agent.wire.UNAVAILABLE_KINDS`."""

    kind: str
    reason: str
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class FactRecord:
    """One request and its result: `value` is the JSON that the node sent. Times are in seconds since the run began."""

    request: Request
    value: Any = None
    unavailable: Unavailable | None = None
    started_s: float = 0.0
    finished_s: float = 0.0
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A message or an observed event of a running child, `at_s` seconds after the run began by the head's clock."""

    request_key: str
    node: str
    at_s: float
    origin: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FactRow(Generic[T]):
    """One recorded observation as checks see it: one row of a request's results."""

    fact: Observed[T] | Unavailable
    series: Series
    row: int

    @property
    def request(self) -> Request:
        """Return the request."""
        return self.series.request(self.row)

    @property
    def asked(self) -> Request:
        """Return the part of the request that is the same for all nodes."""
        return self.series.asked

    @property
    def provenance(self) -> str:
        """Return the claim that determined the context; empty if it is unknown."""
        return self.series.provenance

    @property
    def params(self) -> typing.Mapping[str, Any]:
        """Return the parameters of the request."""
        return self.series.params_of(self.row)

    @property
    def node(self) -> str:
        """Return the node that was observed."""
        return self.series.nodes[self.row]

    @property
    def peers(self) -> tuple[str, ...]:
        """Return the other nodes of a request between nodes."""
        return self.series.peers_of(self.row)

    @property
    def started_s(self) -> float:
        """Return the start of the request, in seconds since the run began."""
        return self.series.started_s[self.row]

    @property
    def finished_s(self) -> float:
        """Return the arrival of the result, in seconds since the run began."""
        return self.series.finished_s[self.row]


class Facts:
    """The facts of a recording, typed by their probes, stored by request and sorted, since order varies."""

    def __init__(self, records: Sequence[FactRecord] = (), events: tuple[EventRecord, ...] = ()) -> None:
        self._records = records
        self._events = events
        self._series_by_probe: dict[str, list[Series]] = {}
        for series in by_request(records).series:
            self._series_by_probe.setdefault(series.asked.probe, []).append(series)
        # Checks need these facts for every node; each fact is validated and looked up once.
        self._typed_value: dict[Callable[..., Any], _TypedFacts] = {}
        self._events_of: dict[str, list[EventRecord]] | None = None

    def each(self, probe: Callable[..., T]) -> Iterator[FactRow[T]]:
        """Yield every observation of `probe`, sorted by node; values are validated against its return type."""
        return iter(self._typed_facts(probe).typed_rows)

    def missing(self, probe: Callable[..., object]) -> Iterator[tuple[str, Unavailable]]:
        """Yield the nodes without a fact from `probe`, each with the reason."""
        return iter(self._typed_facts(probe).missing)

    def of(self, probe: Callable[..., T], node: str) -> Observed[T] | Unavailable:
        """Return the first observation of `probe` on `node`; Unavailable if it was not requested."""
        return self._typed_facts(probe).first.get(node) or Unavailable("blocked", "it was not requested")

    def observed(self, probe: Callable[..., T]) -> dict[str, T]:
        """Return the values of `probe` by node, for the nodes where it succeeded."""
        return dict(self._typed_facts(probe).observed)

    def events(self, key: str = "") -> tuple[EventRecord, ...]:
        """Return the events of the request with this key, in time order; without a key, the events of all requests."""
        if not key:
            return self._events
        if self._events_of is None:
            self._events_of = {}
            for event in self._events:
                self._events_of.setdefault(event.request_key, []).append(event)
        return tuple(self._events_of.get(key, ()))

    @property
    def records(self) -> Sequence[FactRecord]:
        """Return all records in the order they were made."""
        return self._records

    def records_of(self, *, group: str = "") -> Iterator[FactRecord]:
        """Yield the records of a group, or all records, by request, in the order in which they were made."""
        for series in itertools.chain.from_iterable(self._series_by_probe.values()):
            if group in ("", series.asked.group):
                for row in range(len(series.nodes)):
                    yield series.record(row)

    def _typed_facts(self, probe: Callable[..., T]) -> _TypedFacts:
        typed_facts = self._typed_value.get(probe)
        if typed_facts is None:
            typed_facts = self._typed_value[probe] = _TypedFacts(
                self._series_by_probe.get(probe_name(probe), ()), probe
            )
        return typed_facts


class _TypedFacts:
    """The observations of one probe, sorted and validated once, and the views of them that checks need."""

    def __init__(self, series_list: Sequence[Series], probe: Callable[..., Any]) -> None:
        self._rows = _sort_rows(series_list)
        # Nodes with the same answer share the value, which is validated once.
        typed_values: dict[int, Observed[Any] | Unavailable] = {}
        self._facts: list[Observed[Any] | Unavailable] = []
        for series, row in self._rows:
            fact: Observed[Any] | Unavailable | None = series.unavailable.get(row)
            if fact is None:
                value = series.values[row]
                fact = typed_values.get(id(value))
                if fact is None:
                    fact = typed_values[id(value)] = _typed_value(value, probe)
            self._facts.append(fact)

    @functools.cached_property
    def typed_rows(self) -> list[FactRow[Any]]:
        return [FactRow(fact, series, row) for fact, (series, row) in zip(self._facts, self._rows, strict=True)]

    @functools.cached_property
    def missing(self) -> list[tuple[str, Unavailable]]:
        rows = zip(self._facts, self._rows, strict=True)
        return [(series.nodes[row], fact) for fact, (series, row) in rows if isinstance(fact, Unavailable)]

    @functools.cached_property
    def first(self) -> dict[str, Observed[Any] | Unavailable]:
        first_facts: dict[str, Observed[Any] | Unavailable] = {}
        for fact, (series, row) in zip(self._facts, self._rows, strict=True):
            first_facts.setdefault(series.nodes[row], fact)
        return first_facts

    @functools.cached_property
    def observed(self) -> dict[str, Any]:
        first_values: dict[str, Any] = {}
        for fact, (series, row) in zip(self._facts, self._rows, strict=True):
            if isinstance(fact, Observed):
                first_values.setdefault(series.nodes[row], fact.value)
        return first_values


def _sort_rows(series_list: Sequence[Series]) -> list[tuple[Series, int]]:
    """Return the rows of one probe, sorted by the keys of their requests."""
    keys: list[tuple[str, str, str, bool, int, int]] = []
    for number, series in enumerate(series_list):
        request = series.asked
        for row, node in enumerate(series.nodes):
            peers = ",".join(series.peers[row]) if series.peers else ""
            keys.append((node, peers, request.group, request.context, number, row))
    keys.sort()
    row_positions = [key[4:] for key in keys]
    # Parameters are formatted only if all other parts of the keys are equal, and each dictionary only once.
    texts: dict[int, str] = {}

    def params_text(position: tuple[int, int]) -> str:
        series, row = series_list[position[0]], position[1]
        params_text_cached = texts.get(id(series.params[row]))
        if params_text_cached is None:
            params_text_cached = texts[id(series.params[row])] = series.request(row).params_text
        return params_text_cached

    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end][:4] != keys[start][:4]:
            if end - start > 1:
                row_positions[start:end] = sorted(row_positions[start:end], key=params_text)
            start = end
    return [(series_list[number], row) for number, row in row_positions]


def _typed_value(value: Any, probe: Callable[..., T]) -> Observed[T] | Unavailable:
    try:
        adapter = _adapter(probe)
        return Observed(
            adapter.validate_json(value.text) if isinstance(value, LazyJson) else adapter.validate_python(value)
        )
    except ValueError as error:
        return Unavailable("crashed", f"the node sent a fact of an unexpected type: {format_errors(error)}")


@functools.cache
def _adapter(probe: Callable[..., Any]) -> Any:
    """Return a validator for the return type of `probe`, which is built once."""
    function = inspect.unwrap(probe)
    return type_adapter(typing.get_type_hints(function).get("return", object))


class LazyJson:
    """A value as in a saved recording, parsed on first use: strings take a tenth of the memory."""

    __slots__ = ("_parsed", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._parsed: Any = None

    def read(self) -> Any:
        """Parse the value. Raises ValueError if it is not JSON."""
        from pydantic_core import from_json

        return from_json(self.text)

    def parsed(self) -> Any:
        """Return the parsed value, the same object each time."""
        if self._parsed is None:
            self._parsed = self.read()
        return self._parsed


@dataclass(slots=True, eq=False)
class Series:
    """The results of one request, with one row for each of its nodes.

    Args:
        asked: the request without its node, parameters and peers.
        provenance: the claim that determined the context; empty if it is unknown.
        nodes: the node of each row.
        params: the parameters of each row, which may be `LazyJson`.
        peers: the peers of each row; empty if no row has any.
        values: the value of each row, which may be `LazyJson`.
        unavailable: the reasons by row, for the rows without a fact.
        started_s, finished_s: the start and the end of each row's request, in seconds since the run began.
    """

    asked: Request
    provenance: str
    nodes: Sequence[str]
    params: Sequence[Any]
    peers: Sequence[tuple[str, ...]]
    values: Sequence[Any]
    unavailable: Mapping[int, Unavailable]
    started_s: Sequence[float]
    finished_s: Sequence[float]

    def params_of(self, row: int) -> Mapping[str, Any]:
        """Return the parameters of one row's request."""
        params: Any = self.params[row]
        return params.parsed() if isinstance(params, LazyJson) else params  # type: ignore[no-any-return]

    def value_of(self, row: int) -> Any:
        """Return the node's answer, as JSON values."""
        value = self.values[row]
        return value.read() if isinstance(value, LazyJson) else value

    def peers_of(self, row: int) -> tuple[str, ...]:
        """Return the other nodes of one row's request."""
        return self.peers[row] if self.peers else ()

    def request(self, row: int) -> Request:
        """Return the complete request of one row."""
        return replace(self.asked, node=self.nodes[row], params=self.params_of(row), peers=self.peers_of(row))

    def record(self, row: int) -> FactRecord:
        """Return the request and result of one row."""
        return FactRecord(
            self.request(row),
            self.value_of(row),
            self.unavailable.get(row),
            self.started_s[row],
            self.finished_s[row],
            self.provenance,
        )


class Answers(Sequence[FactRecord]):
    """Facts by request. An iteration yields the same facts one by one, and creates each of them on demand."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series

    def __len__(self) -> int:
        return sum(len(series_item.nodes) for series_item in self.series)

    def __iter__(self) -> Iterator[FactRecord]:
        return (series_item.record(row) for series_item in self.series for row in range(len(series_item.nodes)))

    @overload
    def __getitem__(self, index: int) -> FactRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FactRecord]: ...
    def __getitem__(self, index: int | slice) -> FactRecord | Sequence[FactRecord]:
        if isinstance(index, slice):
            return tuple(self)[index]
        remaining_index = index + len(self) if index < 0 else index
        for series_item in self.series:
            if 0 <= remaining_index < len(series_item.nodes):
                return series_item.record(remaining_index)
            remaining_index -= len(series_item.nodes)
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Answers, tuple)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def by_request(records: Sequence[FactRecord]) -> Answers:
    """Return the facts by request in order of arrival; reasons must be the same object, since 1 equals True."""
    if isinstance(records, Answers):
        return records
    groups: dict[tuple[object, ...], list[FactRecord]] = {}
    for record in records:
        request = record.request
        shared_values = (
            request.probe,
            request.listen,
            request.exclusive,
            request.context,
            request.group,
            request.consent,
        )
        key = (*shared_values, request.required, request.deadline_s, id(request.because), record.provenance)
        groups.setdefault(key, []).append(record)
    return Answers([_series(equal_records) for equal_records in groups.values()])


def _series(records: Sequence[FactRecord]) -> Series:
    first_record = records[0]
    requests = [record.request for record in records]
    return Series(
        asked=replace(first_record.request, node="", params={}, peers=()),
        provenance=first_record.provenance,
        nodes=[request.node for request in requests],
        params=[request.params for request in requests],
        peers=[request.peers for request in requests] if any(request.peers for request in requests) else (),
        values=[record.value for record in records],
        unavailable={row: record.unavailable for row, record in enumerate(records) if record.unavailable is not None},
        started_s=[record.started_s for record in records],
        finished_s=[record.finished_s for record in records],
    )
