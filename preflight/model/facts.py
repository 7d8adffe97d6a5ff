"""The facts of a recording as checks see them: by probe and node, as the probe's return type."""

from __future__ import annotations

import functools
import inspect
import itertools
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from preflight._util.validation import format_errors, type_adapter
from preflight.model.fact_columns import LazyJson, Series, by_question
from preflight.model.requests import EventRecord, FactRecord, Observed, Request, Unavailable, probe_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FactRow(Generic[T]):
    """One recorded observation as a check sees it: one row of a request's results."""

    fact: Observed[T] | Unavailable
    series: Series
    row: int

    @property
    def request(self) -> Request:
        """The request."""
        return self.series.request(self.row)

    @property
    def asked(self) -> Request:
        """The request without its node: the part that is the same for all nodes."""
        return self.series.asked

    @property
    def provenance(self) -> str:
        """The claim that the context was taken from; empty if unknown."""
        return self.series.provenance

    @property
    def params(self) -> typing.Mapping[str, Any]:
        """The parameters of the request."""
        return self.series.params_of(self.row)

    @property
    def node(self) -> str:
        """The node that was observed."""
        return self.series.nodes[self.row]

    @property
    def peers(self) -> tuple[str, ...]:
        """The other nodes of a request between nodes."""
        return self.series.peers_of(self.row)

    @property
    def started_s(self) -> float:
        """When it started, in seconds since the run began."""
        return self.series.started_s[self.row]

    @property
    def finished_s(self) -> float:
        """When its result arrived."""
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
        # Checks need each of them for every node; each fact is validated and looked up once.
        self._typed: dict[Callable[..., Any], _Typed] = {}
        self._events_of: dict[str, list[EventRecord]] | None = None

    def each(self, probe: Callable[..., T]) -> Iterator[FactRow[T]]:
        """Every observation of `probe`, by node; values are validated against its return type."""
        return iter(self._typed_of(probe).seen)

    def missing(self, probe: Callable[..., object]) -> Iterator[tuple[str, Unavailable]]:
        """The nodes on which `probe` gave no fact, each with the reason."""
        return iter(self._typed_of(probe).missing)

    def of(self, probe: Callable[..., T], node: str) -> Observed[T] | Unavailable:
        """The (first) observation of `probe` on `node`; Unavailable when it was not requested."""
        return self._typed_of(probe).first.get(node) or Unavailable("blocked", "it was not requested")

    def observed(self, probe: Callable[..., T]) -> dict[str, T]:
        """The values of `probe` by node, for the nodes where it succeeded."""
        return dict(self._typed_of(probe).observed)

    def events(self, key: str = "") -> tuple[EventRecord, ...]:
        """Events of the request with this key, in time order; without a key, those of all requests."""
        if not key:
            return self._events
        if self._events_of is None:
            self._events_of = {}
            for event in self._events:
                self._events_of.setdefault(event.request_key, []).append(event)
        return tuple(self._events_of.get(key, ()))

    @property
    def records(self) -> Sequence[FactRecord]:
        """All records in the order they were made."""
        return self._records

    def records_of(self, *, probe: str = "", group: str = "") -> Iterator[FactRecord]:
        """The records of a probe (by its name on the wire), of a group, or of both, in the order they were made."""
        for series in itertools.chain.from_iterable(self._of_probe.values()):
            if probe in ("", series.asked.probe) and group in ("", series.asked.group):
                for row in range(len(series.nodes)):
                    yield series.record(row)

    def _typed_of(self, probe: Callable[..., T]) -> _Typed:
        found = self._typed.get(probe)
        if found is None:
            found = self._typed[probe] = _Typed(self._of_probe.get(probe_name(probe), ()), probe)
        return found


class _Typed:
    """The observations of one probe in order, validated once, with derived values that checks need."""

    def __init__(self, several: Sequence[Series], probe: Callable[..., Any]) -> None:
        self._rows = _in_order(several)
        # Nodes with the same answer share the value, which is validated once.
        looked_at: dict[int, Observed[Any] | Unavailable] = {}
        self._facts: list[Observed[Any] | Unavailable] = []
        for series, row in self._rows:
            fact: Observed[Any] | Unavailable | None = series.unavailable.get(row)
            if fact is None:
                value = series.values[row]
                fact = looked_at.get(id(value))
                if fact is None:
                    fact = looked_at[id(value)] = _typed(value, probe)
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


def _in_order(several: Sequence[Series]) -> list[tuple[Series, int]]:
    """The rows of one probe, sorted by the keys of their requests."""
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


def _typed(value: Any, probe: Callable[..., T]) -> Observed[T] | Unavailable:
    try:
        adapter = _adapter(probe)
        return Observed(
            adapter.validate_json(value.text) if isinstance(value, LazyJson) else adapter.validate_python(value)
        )
    except ValueError as error:
        return Unavailable("crashed", f"the node sent a fact of an unexpected type: {format_errors(error)}")


@functools.cache
def _adapter(probe: Callable[..., Any]) -> Any:
    """A validator for the return type of `probe`, built once."""
    function = inspect.unwrap(probe)
    return type_adapter(typing.get_type_hints(function).get("return", object))
