"""The file format of a recording: data that many nodes share is stored once, and each request is stored once with the
answers of all nodes.

Ten thousand nodes get the same requests for the same claims, and mostly give the same answers. So claims, parameters
and values are tables with a line for each row, and the facts of one request are columns over its rows. A file may be
compressed with gzip.

The schema of a saved recording as classes, which validate it and generate its JSON Schema.
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
from preflight.model.requests import Answers, LazyJson, Request, Series, Unavailable, by_question

#: A recording of ten thousand nodes is a twentieth of this; anything that unpacks to more is not a recording.
MAX_BYTES = 512 << 20
#: Largest number of values in a recording: each costs some 70 bytes of memory even if it is one character long.
MAX_ITEMS = 40_000_000
#: Largest nesting depth of lists and objects.
MAX_DEPTH = 64
#: Size limit of a document that another program wrote, which is parsed as a whole.
MAX_REWRITTEN_BYTES, MAX_REWRITTEN_ITEMS = 64 << 20, 4_000_000
#: Text that may be an integer of more than 64 bits or a non-finite number; it may also be part of a string.
_SUSPECT = re.compile(rb"\d{19}|\d[eE]\+?\d{3}|NaN|Infinity")
#: The beginning of a document that `save` wrote.
_BEGINNING = b'{\n"schema_version": %d,' % SCHEMA_VERSION
#: Recordings compress to a thirtieth; one that unpacks to more than this times its size is rejected.
_MAX_EXPANSION = 150
_GZIP_MAGIC = b"\x1f\x8b"
#: The columns of a request, each with one entry per node.
_COLUMNS = ("params", "peers", "values", "started_s", "finished_s")
#: Fields with observations on nodes or reports of bugs.
_OF_NODES = ("events", "nodes", "stages", "unplanned", "origin", "cluster")
_MAY_BE_EMPTY = ("peers", "unavailable")


def save(recording: Recording, *, compressed: bool = False) -> bytes:
    """Return the recording as JSON, compressed with gzip on request; the same recording always gives the same bytes."""
    tables = _Tables()
    facts = list(tables.facts(by_question(recording.facts).series))
    parts = [f'"schema_version": {SCHEMA_VERSION}']
    for name in REST:
        value = getattr(recording, name)
        write = _event_text if name == "events" else _redacted_text if name in _OF_NODES else _text
        parts.append(f'"{name}": {_json_list(map(write, value)) if isinstance(value, tuple) else write(value)}')
    parts += [f'"{name}": {_json_list(rows)}' for name, rows in tables.rows.items()]
    parts.append(f'"facts": {_json_list(facts)}')
    # Half of a surrogate pair, which a script may write as an escape, cannot be encoded in UTF-8.
    text = ("{\n" + ",\n".join(parts) + "\n}\n").encode("utf-8", "replace").decode()
    data = escape_control_chars(text).encode()
    return gzip.compress(data, 6, mtime=0) if compressed else data


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)


def _redacted_text(value: Any) -> str:
    """Return the JSON of facts from nodes, redacted. An agent hides apparent secrets; a plugin's probe may not."""
    text = _text(value)
    return _text(redact_tree(json.loads(text))) if may_hold_secret(text) else text


def _event_text(event: EventRecord) -> str:
    """Return the JSON of an event. Only its data come from a node: `request_key` is generated here and holds no
    secret.
    """
    return _text({**plain(event), "data": json.loads(_redacted_text(event.data))})


def _json_list(lines: Iterable[str]) -> str:
    written = ",\n".join(lines)
    return f"[\n{written}\n]" if written else "[]"


class _Tables:
    """The rows of the shared tables, each once, in the order in which the facts first use them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, int]] = {"claims": {}, "params": {}, "values": {}}
        #: Requests of one check share their claims and parameters, and nodes their values, as identical objects.
        self._known: dict[tuple[str, int], tuple[Any, int]] = {}

    def facts(self, several: Sequence[Series]) -> Iterator[str]:
        """Yield one line for each request; requests with the same JSON are merged."""
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
        columns["unavailable"].update(
            {str(first + row): json.loads(_redacted_text(why)) for row, why in series.unavailable.items()}
        )
        columns["started_s"] += series.started_s
        columns["finished_s"] += series.finished_s

    def _row(self, table: str, value: Any) -> int:
        known = self._known.get((table, id(value)))
        if known is None:
            # Compared by their text: 1, 1.0 and True compare equal but are different claims.
            text = _redacted_text(value.read() if isinstance(value, LazyJson) else value)
            rows = self.rows[table]
            # The object is kept with its row, so that its id is not reused meanwhile.
            known = self._known[table, id(value)] = (value, rows.setdefault(text, len(rows)))
        return known[1]


def load(data: bytes, *, to_judge: bool = False) -> Recording:
    """Parse a recording from a file's bytes; with `to_judge`, facts are parsed on first use.

    Raises ValueError with the location of the error in the document.
    """
    try:
        if data[:2] == _GZIP_MAGIC:
            data = _unpack(data)
        _check_bounds(data)
        version = _version_of(data)
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}; this version of preflight reads {SCHEMA_VERSION}")
        found = _read(data, to_judge=to_judge)
        if _SUSPECT.search(data) is not None:
            _check_numbers(found)
        return found
    except ValueError as error:
        raise ValueError(format_errors(error)) from None


def _unpack(data: bytes) -> bytes:
    try:
        most = min(MAX_BYTES, _MAX_EXPANSION * max(len(data), 1 << 16))
        # Measured before it is stored, so that a decompression bomb costs time but no memory.
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            size = 0
            while size <= most and (piece := file.read(1 << 20)):
                size += len(piece)
        if size > most:
            raise ValueError(f"it is compressed, and unpacks to more than {regular_file.size_of(most)}")
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it is compressed, and cannot be unpacked: {error}") from None


def _check_bounds(data: bytes) -> None:
    """Raise ValueError, with the line if there is one, if a document is larger or deeper than any recording."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes; a recording has at most {MAX_BYTES}")
    own = data.startswith(_BEGINNING)
    if not own and len(data) > MAX_REWRITTEN_BYTES:
        most = MAX_REWRITTEN_BYTES
        raise ValueError(
            f"it has {len(data)} bytes and was not written by preflight; the limit for such files is {most}"
        )
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.isascii():
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"line {number}: byte {line[error.start]:#04x} is not UTF-8") from None
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH and is_deep(line):
            raise ValueError(f"line {number}: more than {MAX_DEPTH} levels deep, or brackets that do not match")
    check_size(data, max_items=MAX_ITEMS if own else MAX_REWRITTEN_ITEMS)


def _check_numbers(recording: Recording) -> None:
    """Raise ValueError, with the location, if facts or events hold numbers that no node can send."""
    for number, event in enumerate(recording.events):
        _check_value(event.data, f"events[{number}].data")
    looked_at: set[int] = set()
    for number, series in enumerate(by_question(recording.facts).series):
        for row, value in enumerate(series.values):
            if id(value) not in looked_at:
                looked_at.add(id(value))
                _check_value(value, f"facts[{number}].values[{row}]")


def _check_value(value: Any, place: str) -> None:
    try:
        if isinstance(value, LazyJson):
            if _SUSPECT.search(value.text) is not None:
                parse(value.text, max_depth=MAX_DEPTH)
        else:
            check_numbers(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _version_of(data: bytes) -> Any:
    """Return the format version that a document states; a document without one fails later, with a location."""
    if data.startswith(_BEGINNING):
        return SCHEMA_VERSION
    from pydantic_core import from_json

    try:
        whole = from_json(data)
    except ValueError:
        return None
    return whole.get("schema_version") if isinstance(whole, dict) else None


def _read(data: bytes, *, to_judge: bool) -> Recording:
    rest, params, values = _split_tables(data) if to_judge else (data, [], [])
    found = type_adapter(document()).validate_json(rest)
    series = _series(found, params or found.params, values or found.values)
    answers = Answers(list(series))
    return Recording(**{name: getattr(found, name) for name in REST}, facts=answers if to_judge else tuple(answers))


def _split_tables(data: bytes) -> tuple[bytes, list[LazyJson], list[LazyJson]]:
    """Return the document without its parameters and values, and their lines; the whole document if it has no such
    lines.

    A JSON string cannot contain a newline, so these lines cannot be part of one.
    """
    marks = (b'\n"params": [\n', b'\n],\n"values": [\n', b'\n],\n"facts": [')
    params = data.find(marks[0])
    values = data.find(marks[1], params)
    facts = data.find(marks[2], values)
    # If another program rewrote the document, values and facts may span several lines.
    if min(params, values, facts) < 0 or data.find(marks[0], facts) >= 0:
        return data, [], []
    to_params, to_values = params + len(marks[0]), values + len(marks[1])
    rest = b"%s[%s[%s" % (data[: to_params - 2], data[values + 1 : to_values - 2], data[facts + 1 :])
    return rest, _lazy_values(data[to_params:values]), _lazy_values(data[to_values:facts])


def _lazy_values(table: bytes) -> list[LazyJson]:
    return [LazyJson(line) for line in table.split(b",\n")]


def _series(whole: Any, params: Sequence[Any], values: Sequence[Any]) -> Iterator[Series]:
    """Yield the facts in the tables of a document, by request; data shared there is also shared by the facts."""
    claims: Sequence[Claim] = whole.claims
    for number, found in enumerate(whole.facts):
        place = f"facts[{number}]"
        for name in _COLUMNS:
            column = getattr(found, name)
            if len(column) != len(found.nodes) and (column or name not in _MAY_BE_EMPTY):
                raise ValueError(f"{place}.{name}: it has {len(column)} entries for {len(found.nodes)} nodes")
        for row in found.unavailable:
            _row_of(found.nodes, row, "nodes", f"{place}.unavailable")
        because = tuple(_row_of(claims, row, "claims", f"{place}.because") for row in found.because)
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
    present_rows = [row for row in rows if row is not None]
    for row in (min(present_rows), max(present_rows)) if present_rows else ():
        _row_of(table, row, name, f"{place}.{name}")
    return [None if row is None else table[row] for row in rows]


def _row_of(table: Sequence[Any], row: int, name: str, place: str) -> Any:
    """Return a row of a table of the document, for the reference at `place`. Raises ValueError if it does not exist."""
    if not 0 <= row < len(table):
        raise ValueError(f"{place}: there is no row {row} in {name}, which has {len(table)}")
    return table[row]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of `save`."""
    return schema_of(type_adapter(document()), "preflight recording")


#: Fields of a request that differ between nodes; all others are shared by the nodes that get the request.
OWN = ("node", "params", "peers")
SHARED = tuple(item.name for item in dataclasses.fields(Request) if item.name not in (*OWN, "because"))
#: Fields of a recording other than its facts.
REST = tuple(item.name for item in dataclasses.fields(Recording) if item.name not in ("facts", "schema_version"))


@functools.cache
def document() -> Any:
    """Return the class of a document in the current format."""
    series = build_class(
        Request,
        SHARED,
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
        REST,
        Recording=(
            ("schema_version", Literal[SCHEMA_VERSION], SCHEMA_VERSION),
            ("claims", tuple[Claim, ...], ()),
            ("params", tuple[dict[str, Any], ...], ()),
            ("values", tuple[Any, ...], ()),
            ("facts", tuple[series, ...], ()),  # type: ignore[valid-type]
        ),
    )


def build_class(model: type[Any], names: Sequence[str], **more: Sequence[tuple[str, Any, Any]]) -> type:
    """Return a class with these fields of `model` and additional ones, each with a type and a default (or its
    factory).
    """
    ((name, others),) = more.items()
    replaced = {other[0] for other in others}
    hints = typing.get_type_hints(model)
    fields: list[tuple[str, Any, Any]] = [
        (item.name, hints[item.name], _same_default(item))
        for item in dataclasses.fields(model)
        if item.name in names and item.name not in replaced
    ]
    fields += [(other, kind, _default(value)) for other, kind, value in others]
    return dataclasses.make_dataclass(name, fields, frozen=True, slots=True, kw_only=True)


def _default(value: Any) -> Any:
    if value is dict:
        return field(default_factory=dict)
    return field() if value is dataclasses.MISSING else field(default=value)


def _same_default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return field(default_factory=item.default_factory)
    return field() if item.default is dataclasses.MISSING else field(default=item.default)
