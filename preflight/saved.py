"""The form of a recording in a file: what many nodes share stands there once, and one question with all its answers.

A fleet of ten thousand is asked the same by the same claims, and mostly answers the same. So claims, parameters and
values are tables with a line for each row, and the facts of one question are columns of their rows. A file may be
compressed with gzip; earlier forms are read as well.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from preflight.answers import Answers, Series, Unread, by_question
from preflight.complaint import said
from preflight.document import calm, plain, schema_of
from preflight.job import Claim
from preflight.lazy.validators import validator
from preflight.recording import SCHEMA_VERSION, Recording
from preflight.request import Request
from preflight.saved_before import read_first, read_second, row_of
from preflight.saved_shape import REST, SHARED, document

#: A recording of ten thousand nodes is a twentieth of this; what unpacks to more is no recording.
LARGEST_BYTES = 4 << 30
_GZIP_MAGIC = b"\x1f\x8b"
#: The columns of a question, each with an entry for each node.
_COLUMNS = ("params", "peers", "values", "started_s", "finished_s")
_MAY_BE_EMPTY = ("peers", "unavailable")


def save(recording: Recording, *, compressed: bool = False) -> bytes:
    """The recording as JSON, compressed with gzip where that is wanted; the same bytes for the same recording."""
    tables = _Tables()
    facts = list(tables.facts(by_question(recording.facts).series))
    parts = [f'"schema_version": {SCHEMA_VERSION}']
    for name in REST:
        value = getattr(recording, name)
        parts.append(f'"{name}": {_listed(map(_text, value)) if isinstance(value, tuple) else _text(value)}')
    parts += [f'"{name}": {_listed(rows)}' for name, rows in tables.rows.items()]
    parts.append(f'"facts": {_listed(facts)}')
    # Half of a surrogate pair, which a script may spell as an escape, cannot stand in UTF-8.
    text = ("{\n" + ",\n".join(parts) + "\n}\n").encode("utf-8", "replace").decode()
    data = calm(text).encode()
    return gzip.compress(data, 6, mtime=0) if compressed else data


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)


def _listed(lines: Iterable[str]) -> str:
    written = ",\n".join(lines)
    return f"[\n{written}\n]" if written else "[]"


class _Tables:
    """The rows of the shared tables, each once, in the order in which the facts first need them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, int]] = {"claims": {}, "params": {}, "values": {}}
        #: Requests of one check share their claims and parameters, and nodes their values, as the very same objects.
        self._known: dict[tuple[str, int], tuple[Any, int]] = {}

    def facts(self, several: Sequence[Series]) -> Iterator[str]:
        """A line for each question; questions with the same text are one."""
        found: dict[str, dict[str, Any]] = {}
        for series in several:
            asked = {name: getattr(series.asked, name) for name in SHARED}
            asked["because"] = [self._row("claims", claim) for claim in series.asked.because]
            asked["provenance"] = series.provenance
            columns = found.setdefault(_text(asked), {"nodes": [], "unavailable": {}, **{n: [] for n in _COLUMNS}})
            self._append(columns, series)
        for text, columns in found.items():
            filled = {name: column for name, column in columns.items() if any(column) or name not in _MAY_BE_EMPTY}
            yield f"{text[:-1]},{_text(filled)[1:]}"

    def _append(self, columns: dict[str, Any], series: Series) -> None:
        first = len(columns["nodes"])
        columns["nodes"] += series.nodes
        columns["params"] += [self._row("params", params) for params in series.params]
        columns["peers"] += series.peers or [()] * len(series.nodes)
        columns["values"] += [
            None if value is None and row in series.unavailable else self._row("values", value)
            for row, value in enumerate(series.values)
        ]
        columns["unavailable"].update({str(first + row): why for row, why in series.unavailable.items()})
        columns["started_s"] += series.started_s
        columns["finished_s"] += series.finished_s

    def _row(self, table: str, value: Any) -> int:
        known = self._known.get((table, id(value)))
        if known is None:
            # By their text: 1, 1.0 and True are equal and are not the same claim.
            text = _text(value.read() if isinstance(value, Unread) else value)
            rows = self.rows[table]
            # The object is kept with its row, so that its number is not another's meanwhile.
            known = self._known[table, id(value)] = (value, rows.setdefault(text, len(rows)))
        return known[1]


def load(data: bytes, *, to_judge: bool = False) -> Recording:
    """The recording in a file's bytes; one only `to_judge` has facts that are taken apart as they are looked at.

    Raises ValueError that says where the document is wrong.
    """
    try:
        if data[:2] == _GZIP_MAGIC:
            data = _unpacked(data)
        version = _version_of(data)
        if version == SCHEMA_VERSION:
            return _read(data, to_judge=to_judge)
        if isinstance(version, int) and version not in (1, 2):
            raise ValueError(f"schema_version: it is {version}, and this version of preflight reads 1, 2 and 3")
        return read_second(data) if version == 2 else read_first(data)
    except ValueError as error:
        raise ValueError(said(error)) from None


def _unpacked(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(LARGEST_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ValueError(f"it is compressed, and cannot be unpacked: {error}") from None
    if len(found) > LARGEST_BYTES:
        raise ValueError(f"it is compressed, and unpacks to more than {LARGEST_BYTES} bytes")
    return found


def _version_of(data: bytes) -> Any:
    """What a document says its form is; a document that is none says it later, with its place."""
    if data.startswith(b'{\n"schema_version": %d,' % SCHEMA_VERSION):
        return SCHEMA_VERSION
    from pydantic_core import from_json

    try:
        whole = from_json(data)
    except ValueError:
        return None
    return whole.get("schema_version") if isinstance(whole, dict) else None


def _read(data: bytes, *, to_judge: bool) -> Recording:
    rest, params, values = _set_aside(data) if to_judge else (data, [], [])
    found = validator(document()).validate_json(rest)
    series = _series(found, params or found.params, values or found.values)
    answers = Answers(list(series))
    return Recording(**{name: getattr(found, name) for name in REST}, facts=answers if to_judge else tuple(answers))


def _set_aside(data: bytes) -> tuple[bytes, list[Unread], list[Unread]]:
    """The document without its parameters and values, and these by their lines; all of it where it has no such lines.

    No newline stands within a string of JSON, so these lines cannot be part of one.
    """
    marks = (b'\n"params": [\n', b'\n],\n"values": [\n', b'\n],\n"facts": [')
    params = data.find(marks[0])
    values = data.find(marks[1], params)
    facts = data.find(marks[2], values)
    # Where other programs wrote the document anew, values may go on over several lines; then so do facts.
    if min(params, values, facts) < 0 or data.find(marks[0], facts) >= 0:
        return data, [], []
    to_params, to_values = params + len(marks[0]), values + len(marks[1])
    rest = b"%s[%s[%s" % (data[: to_params - 2], data[values + 1 : to_values - 2], data[facts + 1 :])
    return rest, _unread(data[to_params:values]), _unread(data[to_values:facts])


def _unread(table: bytes) -> list[Unread]:
    return [Unread(line) for line in table.split(b",\n")]


def _series(whole: Any, params: Sequence[Any], values: Sequence[Any]) -> Iterator[Series]:
    """The questions that the tables of a document stand for; what they share is shared by their facts too."""
    claims: Sequence[Claim] = whole.claims
    for number, found in enumerate(whole.facts):
        place = f"facts[{number}]"
        for name in _COLUMNS:
            column = getattr(found, name)
            if len(column) != len(found.nodes) and (column or name not in _MAY_BE_EMPTY):
                raise ValueError(f"{place}.{name}: it has {len(column)} entries for {len(found.nodes)} nodes")
        for row in found.unavailable:
            row_of(found.nodes, row, "nodes", f"{place}.unavailable")
        because = tuple(row_of(claims, row, "claims", f"{place}.because") for row in found.because)
        yield Series(
            asked=Request(node="", because=because, **{name: getattr(found, name) for name in SHARED}),
            provenance=found.provenance,
            nodes=found.nodes,
            params=_rows(params, found.params, "params", place),
            peers=found.peers,
            values=_rows(values, found.values, "values", place),
            unavailable=found.unavailable,
            started_s=found.started_s,
            finished_s=found.finished_s,
        )


def _rows(table: Sequence[Any], rows: Sequence[int | None], name: str, place: str) -> list[Any]:
    there = [row for row in rows if row is not None]
    for row in (min(there), max(there)) if there else ():
        row_of(table, row, name, f"{place}.{name}")
    return [None if row is None else table[row] for row in rows]


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what `save` gives."""
    from pydantic import TypeAdapter

    return schema_of(TypeAdapter(document()), "preflight recording")
