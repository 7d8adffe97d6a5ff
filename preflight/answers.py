"""Facts as columns: what came of one question, asked of many nodes.

Ten thousand nodes are asked the same thirty questions. As objects of their own that is a million of them, which takes
longer to make than all of them take to be judged; as columns they are made where a check looks at one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from preflight.lazy.dataclasses import dataclass
from preflight.observation import FactRecord, Unavailable
from preflight.request import Request


class Unread:
    """A value as it stands in a saved recording, taken apart when somebody looks at it.

    As text, ten thousand nodes' values take a tenth of the memory, and most are needed once or never.
    """

    __slots__ = ("_kept", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._kept: Any = None

    def read(self) -> Any:
        """The value, anew. Raises ValueError when it is no JSON."""
        from pydantic_core import from_json

        return from_json(self.text)

    def kept(self) -> Any:
        """The value, the same object each time."""
        if self._kept is None:
            self._kept = self.read()
        return self._kept


@dataclass(slots=True, eq=False)
class Series:
    """What came of one question: `asked` of no node in particular, and one row for each node (and partner) it went to.

    `params` and `values` may be `Unread`. `peers` is empty where no request has any. `unavailable` holds the rows of
    which there is no fact; all others have one.
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
        """The parameters of one request."""
        found: Any = self.params[row]
        return found.kept() if isinstance(found, Unread) else found  # type: ignore[no-any-return]

    def value_of(self, row: int) -> Any:
        """What a node said, as JSON."""
        found = self.values[row]
        return found.read() if isinstance(found, Unread) else found

    def peers_of(self, row: int) -> tuple[str, ...]:
        """The other nodes of one request."""
        return self.peers[row] if self.peers else ()

    def request(self, row: int) -> Request:
        """One request, whole."""
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
        """One request and what came of it."""
        return FactRecord(
            self.request(row),
            self.value_of(row),
            self.unavailable.get(row),
            self.started_s[row],
            self.finished_s[row],
            self.provenance,
        )


class Answers(Sequence[FactRecord]):
    """Facts by question. As a sequence, the same facts one by one, each made when it is asked for."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.series = series

    def __len__(self) -> int:
        return sum(len(one.nodes) for one in self.series)

    def __iter__(self) -> Iterator[FactRecord]:
        return (one.record(row) for one in self.series for row in range(len(one.nodes)))

    @overload
    def __getitem__(self, index: int) -> FactRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FactRecord]: ...
    def __getitem__(self, index: int | slice) -> FactRecord | Sequence[FactRecord]:
        if isinstance(index, slice):
            return tuple(self)[index]
        left = index + len(self) if index < 0 else index
        for one in self.series:
            if 0 <= left < len(one.nodes):
                return one.record(left)
            left -= len(one.nodes)
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Answers, tuple)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def by_question(records: Sequence[FactRecord]) -> Answers:
    """The same facts by question; those of one question in the order in which they came.

    Equal reasons make one question only as the very same object: 1, 1.0 and True are equal and are not the same claim.
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
