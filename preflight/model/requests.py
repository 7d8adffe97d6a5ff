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
        probe: `module:function` of the code that runs on the node; build it with `probe_name`.
        node: name of the node that it runs on.
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
        """Return the request without its node: the part that is the same for all nodes."""
        return self.series.asked

    @property
    def provenance(self) -> str:
        """Return the claim that determined the context; empty if unknown."""
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
    """The facts of a recording, typed by the probes that observed them.

    Answers arrive in a different order in each run, so facts are stored by request.
    """

    def __init__(self, records: Sequence[FactRecord] = (), events: tuple[EventRecord, ...] = ()) -> None:
        self._records = records
        self._events = events
        self._of_probe: dict[str, list[Series]] = {}
        for series in by_question(records).series:
            self._of_probe.setdefault(series.asked.probe, []).append(series)
        # Checks need these facts for every node; each fact is validated and looked up once.
        self._type_value: dict[Callable[..., Any], _Typed] = {}
        self._events_of: dict[str, list[EventRecord]] | None = None

    def each(self, probe: Callable[..., T]) -> Iterator[FactRow[T]]:
        """Yield every observation of `probe`, by node; values are validated against its return type."""
        return iter(self._typed_of(probe).seen)

    def missing(self, probe: Callable[..., object]) -> Iterator[tuple[str, Unavailable]]:
        """Yield the nodes without a fact from `probe`, each with the reason."""
        return iter(self._typed_of(probe).missing)

    def of(self, probe: Callable[..., T], node: str) -> Observed[T] | Unavailable:
        """Return the (first) observation of `probe` on `node`; Unavailable when it was not requested."""
        return self._typed_of(probe).first.get(node) or Unavailable("blocked", "it was not requested")

    def observed(self, probe: Callable[..., T]) -> dict[str, T]:
        """Return the values of `probe` by node, for the nodes where it succeeded."""
        return dict(self._typed_of(probe).observed)

    def events(self, key: str = "") -> tuple[EventRecord, ...]:
        """Return events of the request with this key, in time order; without a key, those of all requests."""
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
        """Yield the records of a group, or all, in the order they were made."""
        for series in itertools.chain.from_iterable(self._of_probe.values()):
            if group in ("", series.asked.group):
                for row in range(len(series.nodes)):
                    yield series.record(row)

    def _typed_of(self, probe: Callable[..., T]) -> _Typed:
        found = self._type_value.get(probe)
        if found is None:
            found = self._type_value[probe] = _Typed(self._of_probe.get(probe_name(probe), ()), probe)
        return found


class _Typed:
    """The observations of one probe in order, validated once, with derived values that checks need."""

    def __init__(self, several: Sequence[Series], probe: Callable[..., Any]) -> None:
        self._rows = _sort_rows(several)
        # Nodes with the same answer share the value, which is validated once.
        looked_at: dict[int, Observed[Any] | Unavailable] = {}
        self._facts: list[Observed[Any] | Unavailable] = []
        for series, row in self._rows:
            fact: Observed[Any] | Unavailable | None = series.unavailable.get(row)
            if fact is None:
                value = series.values[row]
                fact = looked_at.get(id(value))
                if fact is None:
                    fact = looked_at[id(value)] = _type_value(value, probe)
            self._facts.append(fact)

    @functools.cached_property
    def seen(self) -> list[FactRow[Any]]:
        return [FactRow(fact, series, row) for fact, (series, row) in zip(self._facts, self._rows, strict=True)]

    @functools.cached_property
    def missing(self) -> list[tuple[str, Unavailable]]:
        rows = zip(self._facts, self._rows, strict=True)
        return [(series.nodes[row], fact) for fact, (series, row) in rows if isinstance(fact, Unavailable)]

    @functools.cached_property
    def first(self) -> dict[str, Observed[Any] | Unavailable]:
        found: dict[str, Observed[Any] | Unavailable] = {}
        for fact, (series, row) in zip(self._facts, self._rows, strict=True):
            found.setdefault(series.nodes[row], fact)
        return found

    @functools.cached_property
    def observed(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for fact, (series, row) in zip(self._facts, self._rows, strict=True):
            if isinstance(fact, Observed):
                found.setdefault(series.nodes[row], fact.value)
        return found


def _sort_rows(several: Sequence[Series]) -> list[tuple[Series, int]]:
    """Return the rows of one probe, sorted by the keys of their requests."""
    keys: list[tuple[str, str, str, bool, int, int]] = []
    for number, series in enumerate(several):
        asked = series.asked
        for row, node in enumerate(series.nodes):
            peers = ",".join(series.peers[row]) if series.peers else ""
            keys.append((node, peers, asked.group, asked.context, number, row))
    keys.sort()
    places = [key[4:] for key in keys]
    # Parameters are formatted only if all else is equal, each set of them once.
    texts: dict[int, str] = {}

    def text(place: tuple[int, int]) -> str:
        series, row = several[place[0]], place[1]
        known = texts.get(id(series.params[row]))
        if known is None:
            known = texts[id(series.params[row])] = series.request(row).params_text
        return known

    start = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or keys[end][:4] != keys[start][:4]:
            if end - start > 1:
                places[start:end] = sorted(places[start:end], key=text)
            start = end
    return [(several[number], row) for number, row in places]


def _type_value(value: Any, probe: Callable[..., T]) -> Observed[T] | Unavailable:
    try:
        adapter = _adapter(probe)
        return Observed(
            adapter.validate_json(value.text) if isinstance(value, LazyJson) else adapter.validate_python(value)
        )
    except ValueError as error:
        return Unavailable("crashed", f"the node sent a fact of an unexpected type: {format_errors(error)}")


@functools.cache
def _adapter(probe: Callable[..., Any]) -> Any:
    """Return a validator for the return type of `probe`, built once."""
    function = inspect.unwrap(probe)
    return type_adapter(typing.get_type_hints(function).get("return", object))


class LazyJson:
    """A value as stored in a saved recording, parsed on first use.

    As strings, the values of ten thousand nodes occupy a tenth of the memory, and most are needed once or never.
    """

    __slots__ = ("_kept", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._kept: Any = None

    def read(self) -> Any:
        """Parse the value. Raises ValueError when it is not JSON."""
        from pydantic_core import from_json

        return from_json(self.text)

    def parsed(self) -> Any:
        """Return the parsed value, the same object each time."""
        if self._kept is None:
            self._kept = self.read()
        return self._kept


@dataclass(slots=True, eq=False)
class Series:
    """The results of one request: `asked` is the request without a node; each of its nodes (and peers) has one row.

    `params` and `values` may be `LazyJson`. `peers` is empty if no request has any. `unavailable` holds the rows
    without a fact; all others have one.
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
        found: Any = self.params[row]
        return found.parsed() if isinstance(found, LazyJson) else found  # type: ignore[no-any-return]

    def value_of(self, row: int) -> Any:
        """Return the node's answer, as JSON values."""
        found = self.values[row]
        return found.read() if isinstance(found, LazyJson) else found

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
    """Facts by request. Iterating yields the same facts one by one, each created on demand."""

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
        left = index + len(self) if index < 0 else index
        for series_item in self.series:
            if 0 <= left < len(series_item.nodes):
                return series_item.record(left)
            left -= len(series_item.nodes)
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Answers, tuple)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def by_question(records: Sequence[FactRecord]) -> Answers:
    """Group facts by request; those of one request keep the order of arrival.

    Requests with equal reasons are merged only if the reasons are the same object: 1, 1.0 and True compare equal but
    are different claims.
    """
    if isinstance(records, Answers):
        return records
    found: dict[tuple[object, ...], list[FactRecord]] = {}
    for record in records:
        asked = record.request
        about = (asked.probe, asked.listen, asked.exclusive, asked.context, asked.group, asked.consent)
        key = (*about, asked.required, asked.deadline_s, id(asked.because), record.provenance)
        found.setdefault(key, []).append(record)
    return Answers([_series(same) for same in found.values()])


def _series(records: Sequence[FactRecord]) -> Series:
    first = records[0]
    requests = [record.request for record in records]
    return Series(
        asked=replace(first.request, node="", params={}, peers=()),
        provenance=first.provenance,
        nodes=[request.node for request in requests],
        params=[request.params for request in requests],
        peers=[request.peers for request in requests] if any(request.peers for request in requests) else (),
        values=[record.value for record in records],
        unavailable={row: record.unavailable for row, record in enumerate(records) if record.unavailable is not None},
        started_s=[record.started_s for record in records],
        finished_s=[record.finished_s for record in records],
    )
