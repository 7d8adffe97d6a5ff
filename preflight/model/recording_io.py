"""Reads and writes the file format of a recording.

Ten thousand nodes get the same requests for the same claims, and mostly give the same answers. So claims, parameters
and values are stored once, in tables with a line for each row, and the facts of one request are columns with one entry
for each node. A file may be compressed with gzip. Classes in this module validate a saved recording and generate its
JSON Schema.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import json
import re
import typing
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

from preflight._util import regular_file
from preflight._util.json_output import escape_control_chars, plain, schema_of
from preflight._util.redaction import redact_tree
from preflight._util.secret_spans import may_hold_secret
from preflight._util.validation import format_errors, type_adapter
from preflight.agent.wire import check_numbers, check_size, is_deep, parse
from preflight.model.job import Claim
from preflight.model.recording import SCHEMA_VERSION, EventRecord, Recording
from preflight.model.requests import Answers, LazyJson, Request, Series, Unavailable, by_request

#: A recording of ten thousand nodes has a twentieth of this size; a file that unpacks to more is not a recording.
MAX_BYTES = 512 << 20
#: The largest number of values in a recording: each takes some 70 bytes of memory even if it is one character long.
MAX_ITEMS = 40_000_000
#: The largest nesting depth of lists and objects.
MAX_DEPTH = 64
#: The size limits of a document that another program wrote, which is parsed as a whole.
MAX_REWRITTEN_BYTES, MAX_REWRITTEN_ITEMS = 64 << 20, 4_000_000
#: A text that may be an integer of more than 64 bits or a non-finite number. It may also be a part of a string.
_SUSPICIOUS_NUMBER = re.compile(rb"\d{19}|\d[eE]\+?\d{3}|NaN|Infinity")
#: The beginning of a document that `save` wrote.
_BEGINNING = b'{\n"schema_version": %d,' % SCHEMA_VERSION
#: Recordings compress to a thirtieth; a file that unpacks to more than this many times its size is rejected.
_MAX_EXPANSION = 150
_GZIP_MAGIC = b"\x1f\x8b"
#: The columns of a request, each with one entry per node.
_COLUMNS = ("params", "peers", "values", "started_s", "finished_s")
#: Fields with observations on nodes or reports of bugs.
_NODE_FIELDS = ("events", "nodes", "stages", "unplanned", "origin", "cluster")
_MAY_BE_EMPTY = ("peers", "unavailable")


def save(recording: Recording, *, compressed: bool = False) -> bytes:
    """Return the recording as JSON (`compressed`: with gzip); the same recording gives the same bytes."""
    tables = _Tables()
    facts = list(tables.facts(by_request(recording.facts).series))
    lines = [f'"schema_version": {SCHEMA_VERSION}']
    for name in OTHER_FIELDS:
        value = getattr(recording, name)
        to_text = _event_text if name == "events" else _redacted_text if name in _NODE_FIELDS else _text
        lines.append(f'"{name}": {_json_list(map(to_text, value)) if isinstance(value, tuple) else to_text(value)}')
    lines += [f'"{name}": {_json_list(rows)}' for name, rows in tables.rows.items()]
    lines.append(f'"facts": {_json_list(facts)}')
    # Half of a surrogate pair, which a script may write as an escape, cannot be encoded in UTF-8.
    text = ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "replace").decode()
    data = escape_control_chars(text).encode()
    return gzip.compress(data, 6, mtime=0) if compressed else data


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)


def _redacted_text(value: Any) -> str:
    """Return the redacted JSON of facts from nodes. An agent hides apparent secrets, but a plugin's probe may not."""
    text = _text(value)
    return _text(redact_tree(json.loads(text))) if may_hold_secret(text) else text


def _event_text(event: EventRecord) -> str:
    """Return the JSON of an event. Only `data` comes from a node, and may contain a secret."""
    return _text({**plain(event), "data": json.loads(_redacted_text(event.data))})


def _json_list(lines: Iterable[str]) -> str:
    joined_lines = ",\n".join(lines)
    return f"[\n{joined_lines}\n]" if joined_lines else "[]"


class _Tables:
    """The rows of the shared tables, each once, in the order in which the facts first use them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, int]] = {"claims": {}, "params": {}, "values": {}}
        #: Requests of one check share their claims and parameters as identical objects, and nodes share their values.
        self._row_by_object: dict[tuple[str, int], tuple[Any, int]] = {}

    def facts(self, series_list: Sequence[Series]) -> Iterator[str]:
        """Yield one line for each request; requests with the same JSON are merged."""
        columns_by_request: dict[str, dict[str, Any]] = {}
        for series in series_list:
            request_fields = {name: getattr(series.asked, name) for name in SHARED_FIELDS}
            request_fields["because"] = [self._row_number("claims", claim) for claim in series.asked.because]
            request_fields["provenance"] = series.provenance
            columns = columns_by_request.setdefault(
                _text(request_fields), {"nodes": [], "unavailable": {}, **{n: [] for n in _COLUMNS}}
            )
            self._append(columns, series)
        for text, columns in columns_by_request.items():
            filled_columns = {
                name: column for name, column in columns.items() if any(column) or name not in _MAY_BE_EMPTY
            }
            yield f"{text[:-1]},{_text(filled_columns)[1:]}"

    def _append(self, columns: dict[str, Any], series: Series) -> None:
        first_row = len(columns["nodes"])
        columns["nodes"] += series.nodes
        columns["params"] += [self._row_number("params", params) for params in series.params]
        columns["peers"] += series.peers or [()] * len(series.nodes)
        columns["values"] += [
            None if value is None and row in series.unavailable else self._row_number("values", value)
            for row, value in enumerate(series.values)
        ]
        columns["unavailable"].update(
            {str(first_row + row): json.loads(_redacted_text(reason)) for row, reason in series.unavailable.items()}
        )
        columns["started_s"] += series.started_s
        columns["finished_s"] += series.finished_s

    def _row_number(self, table: str, value: Any) -> int:
        value_and_row = self._row_by_object.get((table, id(value)))
        if value_and_row is None:
            # Compared by their text: 1, 1.0 and True compare equal but are different claims.
            text = _redacted_text(value.read() if isinstance(value, LazyJson) else value)
            rows = self.rows[table]
            # The object is kept with its row, so that its id is not reused meanwhile.
            value_and_row = self._row_by_object[table, id(value)] = (value, rows.setdefault(text, len(rows)))
        return value_and_row[1]


def load(data: bytes, *, to_judge: bool = False) -> Recording:
    """Return the recording in a file; with `to_judge`, facts are parsed on first use. Raises ValueError."""
    try:
        if data[:2] == _GZIP_MAGIC:
            data = _unpack(data)
        _check_bounds(data)
        version = _version_of(data)
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}; this version of preflight reads {SCHEMA_VERSION}")
        recording = _read(data, to_judge=to_judge)
        if _SUSPICIOUS_NUMBER.search(data) is not None:
            _check_numbers(recording)
        return recording
    except ValueError as error:
        raise ValueError(format_errors(error)) from None


def _unpack(data: bytes) -> bytes:
    try:
        max_bytes = min(MAX_BYTES, _MAX_EXPANSION * max(len(data), 1 << 16))
        # Measured before it is stored, so that a decompression bomb costs time but no memory.
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            size = 0
            while size <= max_bytes and (piece := file.read(1 << 20)):
                size += len(piece)
        if size > max_bytes:
            raise ValueError(f"it is compressed, and unpacks to more than {regular_file.size_of(max_bytes)}")
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it is compressed, and cannot be unpacked: {error}") from None


def _check_bounds(data: bytes) -> None:
    """Raise ValueError, with a line number if possible, if a document is larger or deeper than any recording."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes; a recording may have at most {MAX_BYTES}")
    is_own = data.startswith(_BEGINNING)
    if not is_own and len(data) > MAX_REWRITTEN_BYTES:
        max_bytes = MAX_REWRITTEN_BYTES
        raise ValueError(
            f"it has {len(data)} bytes and was not written by preflight; the limit for such a file is {max_bytes}"
        )
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.isascii():
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"line {number}: byte {line[error.start]:#04x} is not UTF-8") from None
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deep(line):
            raise ValueError(f"line {number}: more than {MAX_DEPTH} levels deep, or brackets that do not match")
    check_size(data, max_items=MAX_ITEMS if is_own else MAX_REWRITTEN_ITEMS)


def _check_numbers(recording: Recording) -> None:
    """Raise ValueError, with the location, if facts or events hold numbers that no node can send."""
    for number, event in enumerate(recording.events):
        _check_value(event.data, f"events[{number}].data")
    checked_ids: set[int] = set()
    for number, series in enumerate(by_request(recording.facts).series):
        for row, value in enumerate(series.values):
            if id(value) not in checked_ids:
                checked_ids.add(id(value))
                _check_value(value, f"facts[{number}].values[{row}]")


def _check_value(value: Any, location: str) -> None:
    try:
        if isinstance(value, LazyJson):
            if _SUSPICIOUS_NUMBER.search(value.text) is not None:
                parse(value.text, max_depth=MAX_DEPTH)
        else:
            check_numbers(value)
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None


def _version_of(data: bytes) -> Any:
    """Return the format version that a document states; None if it states none, which fails later with a location."""
    if data.startswith(_BEGINNING):
        return SCHEMA_VERSION
    from pydantic_core import from_json

    try:
        document = from_json(data)
    except ValueError:
        return None
    return document.get("schema_version") if isinstance(document, dict) else None


def _read(data: bytes, *, to_judge: bool) -> Recording:
    rest_of_document, params, values = _split_tables(data) if to_judge else (data, [], [])
    parsed_document = type_adapter(document_class()).validate_json(rest_of_document)
    series = _series(parsed_document, params or parsed_document.params, values or parsed_document.values)
    answers = Answers(list(series))
    return Recording(
        **{name: getattr(parsed_document, name) for name in OTHER_FIELDS}, facts=answers if to_judge else tuple(answers)
    )


def _split_tables(data: bytes) -> tuple[bytes, list[LazyJson], list[LazyJson]]:
    """Return the document without its parameters and values, the parameters, and the values. If they are not on lines
    of their own, return the whole document and two empty lists.

    A JSON string cannot contain a newline, so these lines cannot be part of a string.
    """
    separators = (b'\n"params": [\n', b'\n],\n"values": [\n', b'\n],\n"facts": [')
    params = data.find(separators[0])
    values = data.find(separators[1], params)
    facts = data.find(separators[2], values)
    # If another program rewrote the document, values and facts may span several lines.
    if min(params, values, facts) < 0 or data.find(separators[0], facts) >= 0:
        return data, [], []
    to_params, to_values = params + len(separators[0]), values + len(separators[1])
    remaining = b"%s[%s[%s" % (data[: to_params - 2], data[values + 1 : to_values - 2], data[facts + 1 :])
    return remaining, _lazy_values(data[to_params:values]), _lazy_values(data[to_values:facts])


def _lazy_values(table: bytes) -> list[LazyJson]:
    return [LazyJson(line) for line in table.split(b",\n")]


def _series(parsed_document: Any, params: Sequence[Any], values: Sequence[Any]) -> Iterator[Series]:
    """Yield the facts in the tables of a document by request; facts share the data of one row as one object."""
    claims: Sequence[Claim] = parsed_document.claims
    for number, record in enumerate(parsed_document.facts):
        location = f"facts[{number}]"
        for name in _COLUMNS:
            column = getattr(record, name)
            if len(column) != len(record.nodes) and (column or name not in _MAY_BE_EMPTY):
                raise ValueError(f"{location}.{name}: it has {len(column)} entries for {len(record.nodes)} nodes")
        for row in record.unavailable:
            _checked_row(record.nodes, row, "nodes", f"{location}.unavailable")
        because = tuple(_checked_row(claims, row, "claims", f"{location}.because") for row in record.because)
        yield Series(
            asked=Request(node="", because=because, **{name: getattr(record, name) for name in SHARED_FIELDS}),
            provenance=record.provenance,
            nodes=record.nodes,
            params=_table_rows(params, record.params, "params", location),
            peers=record.peers,
            values=_table_rows(values, record.values, "values", location),
            unavailable=record.unavailable,
            started_s=record.started_s,
            finished_s=record.finished_s,
        )


def _table_rows(table: Sequence[Any], rows: Sequence[int | None], name: str, location: str) -> list[Any]:
    present_rows = [row for row in rows if row is not None]
    for row in (min(present_rows), max(present_rows)) if present_rows else ():
        _checked_row(table, row, name, f"{location}.{name}")
    return [None if row is None else table[row] for row in rows]


def _checked_row(table: Sequence[Any], row: int, name: str, location: str) -> Any:
    """Return a row of a table, for the reference at `location`. Raises ValueError if it is out of range."""
    if not 0 <= row < len(table):
        raise ValueError(f"{location}: row {row} of {name} does not exist (rows: {len(table)})")
    return table[row]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of `save`."""
    return schema_of(type_adapter(document_class()), "preflight recording")


#: The fields of a request that differ between nodes; the nodes that get the request share all others.
OWN_FIELDS = ("node", "params", "peers")
SHARED_FIELDS = tuple(item.name for item in dataclasses.fields(Request) if item.name not in (*OWN_FIELDS, "because"))
#: Fields of a recording other than its facts.
OTHER_FIELDS = tuple(
    item.name for item in dataclasses.fields(Recording) if item.name not in ("facts", "schema_version")
)


@functools.cache
def document_class() -> Any:
    """Return the class of a document in the current format."""
    series = build_class(
        Request,
        SHARED_FIELDS,
        Series=(
            ("because", tuple[int, ...], ()),
            ("provenance", str, ""),
            ("nodes", tuple[str, ...], dataclasses.MISSING),
            ("params", tuple[int, ...], dataclasses.MISSING),
            ("peers", tuple[tuple[str, ...], ...], ()),
            ("values", tuple[int | None, ...], dataclasses.MISSING),
            ("unavailable", dict[int, Unavailable], dict),
            ("started_s", tuple[float, ...], dataclasses.MISSING),
            ("finished_s", tuple[float, ...], dataclasses.MISSING),
        ),
    )
    return build_class(
        Recording,
        OTHER_FIELDS,
        Recording=(
            ("schema_version", Literal[SCHEMA_VERSION], SCHEMA_VERSION),
            ("claims", tuple[Claim, ...], ()),
            ("params", tuple[dict[str, Any], ...], ()),
            ("values", tuple[Any, ...], ()),
            ("facts", tuple[series, ...], ()),  # type: ignore[valid-type]
        ),
    )


def build_class(model: type[Any], names: Sequence[str], **extra_fields: Sequence[tuple[str, Any, Any]]) -> type:
    """Return a class with some fields of `model` and additional fields.

    Args:
        model: a dataclass.
        names: the fields of `model` to include.
        extra_fields: one argument, which has the name of the new class, and whose value lists the additional fields,
            each with a type and a default (or a factory of the default).
    """
    ((name, extra_specs),) = extra_fields.items()
    replaced_names = {field_name[0] for field_name in extra_specs}
    hints = typing.get_type_hints(model)
    fields: list[tuple[str, Any, Any]] = [
        (item.name, hints[item.name], _same_default(item))
        for item in dataclasses.fields(model)
        if item.name in names and item.name not in replaced_names
    ]
    fields += [(field_name, kind, _field_for(value)) for field_name, kind, value in extra_specs]
    return dataclasses.make_dataclass(name, fields, frozen=True, slots=True, kw_only=True)


def _field_for(value: Any) -> Any:
    if value is dict:
        return field(default_factory=dict)
    return field() if value is dataclasses.MISSING else field(default=value)


def _same_default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return field(default_factory=item.default_factory)
    return field() if item.default is dataclasses.MISSING else field(default=item.default)
