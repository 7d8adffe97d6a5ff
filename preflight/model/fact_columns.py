"""Facts as columns: the results of a request that is sent to many nodes.

Ten thousand nodes get the same thirty requests. Separate objects would take longer to create than to judge; with
columns, an object is created only when a check uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from preflight.model.requests import FactRecord, Request, Unavailable


class LazyJson:
    """A value as stored in a saved recording, parsed on first use.

    As strings, the values of ten thousand nodes take a tenth of the memory, and most are needed once or never.
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
        """The parsed value, the same object each time."""
        if self._kept is None:
            self._kept = self.read()
        return self._kept


@dataclass(slots=True, eq=False)
class Series:
    """The results of one request: `asked` is the request without a node; each node (and peer) that got it has one row.

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
        """The parameters of one row's request."""
        found: Any = self.params[row]
        return found.parsed() if isinstance(found, LazyJson) else found  # type: ignore[no-any-return]

    def value_of(self, row: int) -> Any:
        """The node's answer, as JSON values."""
        found = self.values[row]
        return found.read() if isinstance(found, LazyJson) else found

    def peers_of(self, row: int) -> tuple[str, ...]:
        """The other nodes of one row's request."""
        return self.peers[row] if self.peers else ()

    def request(self, row: int) -> Request:
        """The complete request of one row."""
        asked = self.asked
        return Request(
            probe=asked.probe,
            node=self.nodes[row],
            params=self.params_of(row),
            peers=self.peers_of(row),
            listen=asked.listen,
            exclusive=asked.exclusive,
            context=asked.context,
            group=asked.group,
            consent=asked.consent,
            because=asked.because,
            required=asked.required,
            deadline_s=asked.deadline_s,
        )

    def record(self, row: int) -> FactRecord:
        """The request and result of one row."""
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
    """The same facts by request; those of one request in order of arrival.

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
