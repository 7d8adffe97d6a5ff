"""The functions of Helm's templates, and their data, in which strings and entries keep their locations.

Data is None, bool, int, float, a string, a `Table` or a `Series`. A `Gap` is a value that the files do not determine.

Read from their documentation and from Sprig 3.3. A function takes data and returns data; TypeError, ValueError and the
like mean that Helm would reject it. What depends on the cluster, on time or on chance is a `Gap`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from preflight._util.budget import spend
from preflight.sources.formats.structured import Kind, Node, Origin, Piece
from preflight.sources.shell.shell_document import FileText

#: None, bool, int, float, str, Table, Series, Gap.
Data: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Gap:
    """A value that only the command line, the cluster or chance determines; `why` describes it."""

    why: str


class Written(str):
    """A string whose pieces keep their locations."""

    __slots__ = ("pieces",)
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Written:
        """Return the string made of these pieces."""
        kept = tuple(piece for piece in pieces if piece.text)
        made = cls("".join(piece.text for piece in kept))
        made.pieces = kept
        return made

    def cut(self, start: int, end: int) -> Written:
        """Return characters `start` to `end`."""
        found: list[Piece] = []
        at = 0
        for piece in self.pieces:
            begin, stop = max(start - at, 0), min(end - at, len(piece.text))
            if begin < stop:
                found.append(piece.cut(begin, stop))
            at += len(piece.text)
        return Written.of(found)


class Table(dict[str, Data]):
    """A mapping; `places` are the locations of its values in the file that assigns them."""

    __slots__ = ("places",)

    def __init__(self, items: Mapping[str, Data] | None = None, places: Mapping[str, Origin] | None = None) -> None:
        super().__init__(items or {})
        self.places: dict[str, Origin] = dict(places or {})


class Series(list[Data]):
    """A list; `places` are the locations of its items, as far as they are known."""

    __slots__ = ("places",)

    def __init__(self, items: Iterable[Data] = (), places: Iterable[Origin | None] = ()) -> None:
        super().__init__(items)
        self.places: list[Origin | None] = list(places)


def data_of(node: Node, file: FileText) -> Data:
    """Convert a value of a YAML file to data."""
    if node.kind is Kind.OBJECT:
        members = node.in_force
        return Table(
            {member.key: data_of(member.node, file) for member in members},
            {member.key: _place(member.node, file) for member in members},
        )
    if node.kind is Kind.ARRAY:
        return Series([data_of(item, file) for item in node.items], [_place(item, file) for item in node.items])
    if node.kind is Kind.SCALAR:
        return node.value
    return Gap(f"{str(node.value)[:60]}: a placeholder that is replaced later")


def _place(node: Node, file: FileText) -> Origin:
    return Origin(file, node.start, node.end, exact=False)


def merge_tables(over: Table, base: Table) -> Table:
    """Merge two tables as Helm merges values: tables are merged, any other value of `over` wins, and null removes."""
    found = Table(base, base.places)
    for key, value in over.items():
        below = base.get(key)
        if value is None and key in base:
            found.pop(key)
            found.places.pop(key, None)
            continue
        found[key] = merge_tables(value, below) if isinstance(value, Table) and isinstance(below, Table) else value
        if key in over.places:
            found.places[key] = over.places[key]
    return found


def copy_data(data: Data) -> Data:
    """Return a copy of the data, which can be changed independently."""
    if isinstance(data, Table):
        return Table({key: copy_data(value) for key, value in data.items()}, data.places)
    if isinstance(data, Series):
        return Series([copy_data(item) for item in data], data.places)
    return data


#: Characters of a result; no part of a manifest is longer.
MAX_TEXT_LENGTH = 400_000
MAX_SERIES_LENGTH = 10_000
_NUMBER = re.compile(r"\s*([+-]?[0-9]+)(?:\.[0-9]*)?\s*")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./ @%+=~-]*")
_VERB = re.compile(r"%([-+# 0]*)([0-9]*)(?:\.([0-9]+))?([a-zA-Z%])")
_LIKE_NO_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


def shown(data: Data) -> str:
    """Return data as `print` shows it; None as an empty string, as in a chart's output."""
    if data is None:
        return ""
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return data
    if isinstance(data, float):
        return _float(data)
    if isinstance(data, Table):
        return "map[" + " ".join(f"{key}:{shown(data[key])}" for key in sorted(data)) + "]"
    if isinstance(data, Series):
        return "[" + " ".join(shown(item) for item in data) + "]"
    return str(data)


def _float(number: float) -> str:
    if number == int(number) and abs(number) < 1e21:
        return str(int(number))
    return repr(number)


def is_true(data: Data) -> bool:
    """Return whether data counts as true: everything except zero and empty values."""
    return bool(data)


def to_int(data: Data) -> int:
    """Convert data as `int` does; 0 if it is not a number."""
    if isinstance(data, bool):
        return int(data)
    if isinstance(data, int | float):
        return int(data)
    match = _NUMBER.fullmatch(data) if isinstance(data, str) else None
    return int(match[1]) if match is not None else 0


def to_float(data: Data) -> float:
    """Convert data as `float64` does."""
    if isinstance(data, int | float):
        return float(data)
    try:
        return float(str(data))
    except ValueError:
        return 0.0


def _text(data: Data) -> str:
    if not isinstance(data, str):
        raise TypeError("expected a string")
    return data


def _table(data: Data) -> Table:
    if not isinstance(data, Table):
        raise TypeError("expected a map")
    return data


def _series(data: Data) -> Series:
    if not isinstance(data, Series):
        raise TypeError("expected a list")
    spend(len(data))
    return data


def _short(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError("the string becomes too long")
    spend(len(text) // 64)
    return text


def _lines(text: str, prefix: str) -> str:
    """Prefix every line; the characters keep their locations."""
    if not isinstance(text, Written):
        return _short(prefix + text.replace("\n", "\n" + prefix))
    _short(prefix * (text.count("\n") + 1) + text)
    found: list[Piece] = []
    begins = True
    for piece in text.pieces:
        at = 0
        while at < len(piece.text):
            if begins:
                found.append(Piece(prefix, piece.cut(at, at).origin))
            end = piece.text.find("\n", at)
            end = len(piece.text) if end < 0 else end + 1
            found.append(piece.cut(at, end))
            begins = piece.text[end - 1] == "\n"
            at = end
    if begins and text.pieces:
        found.append(Piece(prefix, text.pieces[-1].origin))
    return Written.of(found)


def _indent(spaces: Data, text: Data) -> str:
    return _lines(_text(text), " " * min(max(to_int(spaces), 0), 200))


def _nindent(spaces: Data, text: Data) -> str:
    inner = _indent(spaces, text)
    if isinstance(inner, Written) and inner.pieces:
        return Written.of((Piece("\n", inner.pieces[0].cut(0, 0).origin), *inner.pieces))
    return "\n" + inner


def _trim(text: Data, signs: str | None = None) -> str:
    whole_text = _text(text)
    start = len(whole_text) - len(whole_text.lstrip(signs))
    end = len(whole_text.rstrip(signs))
    return _cut(whole_text, start, max(start, end))


def _cut(text: str, start: int, end: int) -> str:
    return text.cut(start, end) if isinstance(text, Written) else text[start:end]


def _trim_suffix(suffix: Data, text: Data) -> str:
    if _text(suffix) and _text(text).endswith(suffix):
        return _cut(text, 0, len(text) - len(suffix))
    return _text(text)


def _trim_prefix(prefix: Data, text: Data) -> str:
    return _cut(_text(text), len(_text(prefix)), len(text)) if _text(text).startswith(_text(prefix)) else _text(text)


def _trunc(length: Data, text: Data) -> str:
    count = to_int(length)
    return _cut(_text(text), 0, count) if count >= 0 else _cut(text, max(0, len(text) + count), len(text))


def printf(format_: Data, *items: Data) -> str:
    """Format like Go's `fmt.Sprintf`, for the format verbs that charts use."""
    rest = list(items)

    def filled(match: re.Match[str]) -> str:
        flags, width, digits, verb = match.groups()
        if verb == "%":
            return "%"
        if not rest:
            return f"%!{verb}(MISSING)"
        item = rest.pop(0)
        if verb == "d":
            if isinstance(item, bool) or not isinstance(item, int):
                return f"%!d({shown(item)})"
            text = str(item)
        elif verb in "sv":
            text = shown(item) if item is not None else "<nil>" if verb == "v" else "%!s(<nil>)"
        elif verb == "q":
            text = json.dumps(shown(item))
        elif verb in "feg":
            text = format(to_float(item), f".{digits or 6}{verb}")
        elif verb == "t":
            text = shown(item)
        elif verb in "xX":
            text = format(to_int(item), verb)
        else:
            raise ValueError(f"the format verb %{verb} is not supported")
        length = min(int(width or 0), 200)
        if "-" in flags:
            return text.ljust(length)
        return text.zfill(length) if "0" in flags else text.rjust(length)

    return _short(_VERB.sub(filled, _text(format_)))


# -- YAML and JSON ---------------------------------------------------------------------------------------------------


def to_yaml(data: Data) -> str:
    """Return data as YAML, with sorted keys, as Helm writes it; the texts of values keep their places."""
    pieces: list[Piece | str] = []
    _emit(data, 0, pieces, None)
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(str(piece) for piece in pieces).rstrip("\n")
    known = next(piece.origin for piece in pieces if isinstance(piece, Piece))
    made = []
    for piece in pieces:
        if isinstance(piece, Piece):
            known = piece.origin
            made.append(piece)
        else:
            made.append(Piece(piece, known))
    text = Written.of(made)
    return text.cut(0, len(text.rstrip("\n")))


def _emit(data: Data, indent: int, into: list[Piece | str], place: Origin | None) -> None:
    """Add a value and its line end; a block begins on the current line, `indent` characters in."""
    spend()
    if indent > 200 or len(into) > MAX_SERIES_LENGTH * 10:
        raise ValueError("too deep or too large")
    blanks = " " * indent
    if isinstance(data, Table) and data:
        for number, key in enumerate(sorted(data)):
            value, there = data[key], data.places.get(key, place)
            into.append((blanks if number else "") + _scalar(key, "") + ":")
            if isinstance(value, Table) and value:
                into.append("\n" + blanks + "  ")
                _emit(value, indent + 2, into, there)
            elif isinstance(value, Series) and value:
                into.append("\n" + blanks)
                _emit(value, indent, into, there)
            else:
                into.append(" ")
                _emit(value, indent + 2, into, there)
    elif isinstance(data, Series) and data:
        for number, value in enumerate(data):
            there = data.places[number] if number < len(data.places) else place
            into.append((blanks if number else "") + "- ")
            _emit(value, indent + 2, into, there)
    else:
        text = _scalar(data, blanks)
        into.append(Piece(text, place) if place is not None else text)
        into.append("\n")


def _scalar(data: Data, blanks: str) -> str:
    if data is None:
        return "null"
    if isinstance(data, Gap):
        return gap_text(data)
    if isinstance(data, Table):
        return "{}"
    if isinstance(data, Series):
        return "[]"
    if not isinstance(data, str):
        return shown(data)
    if "\n" in data.strip("\n") and not data.startswith((" ", "\n")):
        sign = "|" if data.endswith("\n") else "|-"
        if data.endswith("\n\n"):
            sign = "|+"
        return sign + "\n" + "\n".join(blanks + line if line else "" for line in data.rstrip("\n").split("\n"))
    if data and _PLAIN.fullmatch(data) and data.lower() not in _LIKE_NO_TEXT and not data.endswith(" "):
        return str(data)
    return json.dumps(data, ensure_ascii=False)


def gap_text(gap: Gap) -> str:
    """Return a gap in the rendered text; readers of YAML treat it as a placeholder."""
    return "{{ " + re.sub(r"[{}\"'\n]", " ", gap.why)[:120] + " }}"


def _from_yaml(text: Data) -> Data:
    from preflight.sources.formats import lenient_yaml
    from preflight.sources.shell.shell_document import FileText

    document = lenient_yaml.parse(_text(text))
    if document.root is None:
        return Table()
    found = data_of(document.root, FileText("", text))
    return _drop_places(found)


def _drop_places(data: Data) -> Data:
    if isinstance(data, Table):
        return Table({key: _drop_places(value) for key, value in data.items()})
    if isinstance(data, Series):
        return Series(_drop_places(item) for item in data)
    return data


def _to_json(data: Data, indent: int | None = None) -> str:
    if _holds_gap(data):
        raise ValueError("it contains an unknown value")
    separators = None if indent else (",", ":")
    return _short(json.dumps(data, indent=indent, separators=separators, sort_keys=True, ensure_ascii=False))


def _holds_gap(data: Data) -> bool:
    if isinstance(data, Gap):
        return True
    if isinstance(data, Table):
        return any(_holds_gap(item) for item in data.values())
    return isinstance(data, Series) and any(_holds_gap(item) for item in data)


# -- numbers ---------------------------------------------------------------------------------------------------------


def _product(*items: Data) -> int:
    result = math.prod(to_int(item) for item in items)
    if abs(result) >= 2**63:
        raise ValueError("the product is too large")
    return result


def _quotient(first: Data, second: Data) -> int:
    a, b = to_int(first), to_int(second)
    found = abs(a) // abs(b)
    return found if (a >= 0) == (b > 0) else -found


def _series_of(start: int, stop: int, step: int) -> Series:
    if step == 0:
        return Series()
    numbers = range(start, stop, step)
    if len(numbers) > MAX_SERIES_LENGTH:
        raise ValueError("the list becomes too long")
    return Series(numbers)


def _until(count: Data) -> Series:
    number = to_int(count)
    return _series_of(0, number, 1 if number >= 0 else -1)


def _seq(*items: Data) -> str:
    numbers = [to_int(item) for item in items]
    start, step = (numbers[0], 1) if len(numbers) > 1 else (1, 1)
    if len(numbers) == 3:
        step = numbers[1]
    end = numbers[-1]
    if len(numbers) < 3 and end < start:
        step = -1
    return " ".join(str(number) for number in _series_of(start, end + (1 if step > 0 else -1), step))


def _compare(first: Data, second: Data) -> int:
    if isinstance(first, str) and isinstance(second, str):
        return (first > second) - (first < second)
    if isinstance(first, int | float) and isinstance(second, int | float):
        return (first > second) - (first < second)
    raise TypeError("the compared values have different types")


def _equal(first: Data, *others: Data) -> bool:
    for other in others:
        if isinstance(first, bool) != isinstance(other, bool) and None not in (first, other):
            raise TypeError("the compared values have different types")
        if isinstance(first, str) != isinstance(other, str) and None not in (first, other):
            raise TypeError("the compared values have different types")
        if first == other:
            return True
    return False


def _length(data: Data) -> int:
    if isinstance(data, str):
        return len(data.encode())
    if isinstance(data, Table | Series):
        return len(data)
    raise TypeError("len of a value without a length")


# -- tables and series -----------------------------------------------------------------------------------------------


def _index(data: Data, *keys: Data) -> Data:
    for key in keys:
        if isinstance(data, Table):
            data = data.get(_text(key))
        elif isinstance(data, Series):
            if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < len(data):
                raise IndexError("index out of range")
            data = data[key]
        else:
            raise TypeError("index of a value that is neither a map nor a list")
    return data


def _set(table: Data, key: Data, value: Data) -> Table:
    found = _table(table)
    found[_text(key)] = value
    found.places.pop(key, None)
    return found


def _unset(table: Data, key: Data) -> Table:
    found = _table(table)
    found.pop(_text(key), None)
    return found


def _merge(*tables: Data) -> Table:
    """Return the first table, extended by entries of the others; the first wins."""
    return _merged(tables, over=False)


def _merge_over(*tables: Data) -> Table:
    """Return the first table, extended by entries of the others; the last wins."""
    return _merged(tables, over=True)


def _merged(tables: tuple[Data, ...], *, over: bool) -> Table:
    target = _table(tables[0])
    for other in tables[1:]:
        for key, value in _table(other).items():
            before = target.get(key)
            if isinstance(before, Table) and isinstance(value, Table) and (over or before):
                _merged((before, value), over=over)
            elif over or not is_true(before):
                target[key] = copy_data(value)
                if key in other.places:
                    target.places[key] = other.places[key]
    return target


def _dict(*items: Data) -> Table:
    pairs = [*items, ""] if len(items) % 2 else list(items)
    return Table({shown(pairs[at]): pairs[at + 1] for at in range(0, len(pairs), 2)})


def _dig(*items: Data) -> Data:
    *keys, default, table = items
    for key in keys:
        if not isinstance(table, Table) or key not in table:
            return default
        table = table[key]
    return table


def _slice(data: Data, start: Data = 0, end: Data = None) -> Data:
    stop = len(data) if end is None else to_int(end)
    if isinstance(data, str):
        return _cut(data, to_int(start), stop)
    return Series(_series(data)[to_int(start) : stop])


def _unique(data: Data) -> Series:
    found = Series()
    for item in _series(data):
        if item not in found:
            found.append(item)
    return found


def _kind(data: Data) -> str:
    if data is None:
        return "invalid"
    kinds: tuple[tuple[type, str], ...] = ((bool, "bool"), (int, "int"), (float, "float64"), (str, "string"))
    return next((name for kind, name in kinds if isinstance(data, kind)), "map" if isinstance(data, Table) else "slice")


def _words(text: str, joint: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s_-]+", joint, text).lower()


def _replace(old: Data, new: Data, text: Data) -> str:
    if _text(old) not in _text(text):
        return str(text) if not isinstance(text, Written) else text
    return _short(text.replace(old, _text(new)))


def _join(separator: Data, data: Data) -> str:
    items = _series(data) if isinstance(data, Series) else Series([data])
    return _short(_text(separator).join(shown(item) for item in items if item is not None))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    # text/template
    "print": lambda *items: " ".join(shown(item) for item in items),
    "println": lambda *items: " ".join(shown(item) for item in items) + "\n",
    "printf": printf,
    "len": _length,
    "index": _index,
    "slice": _slice,
    "not": lambda data: not is_true(data),
    "eq": _equal,
    "ne": lambda first, second: not _equal(first, second),
    "lt": lambda first, second: _compare(first, second) < 0,
    "le": lambda first, second: _compare(first, second) <= 0,
    "gt": lambda first, second: _compare(first, second) > 0,
    "ge": lambda first, second: _compare(first, second) >= 0,
    # texts
    "quote": lambda *items: " ".join(json.dumps(shown(item), ensure_ascii=False) for item in items if item is not None),
    "squote": lambda *items: " ".join("'" + shown(item) + "'" for item in items if item is not None),
    "upper": lambda text: _text(text).upper(),
    "lower": lambda text: _text(text).lower(),
    "title": lambda text: re.sub(r"\b\w", lambda match: match[0].upper(), _text(text)),
    "trim": _trim,
    "trimAll": lambda signs, text: _trim(text, _text(signs)),
    "trimSuffix": _trim_suffix,
    "trimPrefix": _trim_prefix,
    "trunc": _trunc,
    "indent": _indent,
    "nindent": _nindent,
    "replace": _replace,
    "contains": lambda part, text: _text(part) in _text(text),
    "hasPrefix": lambda part, text: _text(text).startswith(_text(part)),
    "hasSuffix": lambda part, text: _text(text).endswith(_text(part)),
    "repeat": lambda count, text: _short(_text(text) * min(max(to_int(count), 0), MAX_TEXT_LENGTH)),
    "nospace": lambda text: re.sub(r"\s", "", _text(text)),
    "cat": lambda *items: " ".join(shown(item) for item in items if item is not None),
    "join": _join,
    "split": lambda separator, text: Table(
        {f"_{number}": part for number, part in enumerate(_text(text).split(_text(separator)))}
    ),
    "splitList": lambda separator, text: Series(_text(text).split(_text(separator))),
    "toString": lambda data: data if isinstance(data, str) else shown(data),
    "toStrings": lambda data: Series(shown(item) for item in _series(data)),
    "kebabcase": lambda text: _words(_text(text), "-"),
    "snakecase": lambda text: _words(_text(text), "_"),
    "regexMatch": lambda pattern, text: re.search(_pattern(pattern), _text(text)[:10_000]) is not None,
    "regexReplaceAll": lambda pattern, text, new: re.sub(
        _pattern(pattern), re.sub(r"\$\{?(\d)\}?", r"\\\1", _text(new)), _text(text)[:10_000]
    ),
    "regexFind": lambda pattern, text: (
        found[0] if (found := re.search(_pattern(pattern), _text(text)[:10_000])) else ""
    ),
    "base": lambda path: posixpath.basename(_text(path).rstrip("/")),
    "dir": lambda path: posixpath.dirname(_text(path)) or ".",
    "ext": lambda path: posixpath.splitext(_text(path))[1],
    "clean": lambda path: posixpath.normpath(_text(path)),
    "isAbs": lambda path: _text(path).startswith("/"),
    "b64enc": lambda text: base64.b64encode(_text(text).encode()).decode(),
    "b64dec": lambda text: base64.b64decode(_text(text)).decode(errors="replace"),
    "sha256sum": lambda text: hashlib.sha256(_text(text).encode()).hexdigest(),
    "sha1sum": lambda text: hashlib.sha1(_text(text).encode(), usedforsecurity=False).hexdigest(),
    # numbers
    "int": to_int,
    "int64": to_int,
    "float64": to_float,
    "atoi": to_int,
    "toDecimal": lambda data: int(shown(data) or "0", 8),
    "add": lambda *items: sum(to_int(item) for item in items),
    "add1": lambda item: to_int(item) + 1,
    "sub": lambda first, second: to_int(first) - to_int(second),
    "mul": _product,
    "div": _quotient,
    "mod": lambda first, second: int(math.fmod(to_int(first), to_int(second))),
    "max": lambda *items: max(to_int(item) for item in items),
    "min": lambda *items: min(to_int(item) for item in items),
    "addf": lambda *items: sum(to_float(item) for item in items),
    "subf": lambda first, second: to_float(first) - to_float(second),
    "mulf": lambda *items: math.prod(to_float(item) for item in items),
    "divf": lambda first, second: to_float(first) / to_float(second),
    "maxf": lambda *items: max(to_float(item) for item in items),
    "minf": lambda *items: min(to_float(item) for item in items),
    "ceil": lambda item: float(math.ceil(to_float(item))),
    "floor": lambda item: float(math.floor(to_float(item))),
    "round": lambda item, digits: round(to_float(item), to_int(digits)),
    "until": _until,
    "untilStep": lambda start, stop, step: _series_of(to_int(start), to_int(stop), to_int(step)),
    "seq": _seq,
    # choices
    "default": lambda default, data=None: data if is_true(data) else default,
    "empty": lambda data: not is_true(data),
    "coalesce": lambda *items: next((item for item in items if is_true(item)), None),
    "ternary": lambda yes, no, test: yes if test else no,
    "all": lambda *items: all(is_true(item) for item in items),
    "any": lambda *items: any(is_true(item) for item in items),
    "kindOf": _kind,
    "typeOf": _kind,
    "kindIs": lambda kind, data: _kind(data) == kind,
    "typeIs": lambda kind, data: _kind(data) == kind,
    # tables and series
    "dict": _dict,
    "get": lambda table, key: _table(table).get(_text(key), ""),
    "set": _set,
    "unset": _unset,
    "hasKey": lambda table, key: _text(key) in _table(table),
    "keys": lambda *tables: Series(key for table in tables for key in _table(table)),
    "values": lambda *tables: Series(value for table in tables for value in _table(table).values()),
    "pick": lambda table, *keys: Table({key: table[key] for key in keys if key in _table(table)}, table.places),
    "omit": lambda table, *keys: Table({k: v for k, v in _table(table).items() if k not in keys}, table.places),
    "pluck": lambda key, *tables: Series(table[key] for table in tables if key in _table(table)),
    "merge": _merge,
    "mustMerge": _merge,
    "mergeOverwrite": _merge_over,
    "mustMergeOverwrite": _merge_over,
    "deepCopy": copy_data,
    "mustDeepCopy": copy_data,
    "dig": _dig,
    "list": lambda *items: Series(items),
    "tuple": lambda *items: Series(items),
    "first": lambda data: _series(data)[0] if data else None,
    "last": lambda data: _series(data)[-1] if data else None,
    "rest": lambda data: Series(_series(data)[1:]),
    "initial": lambda data: Series(_series(data)[:-1]),
    "append": lambda data, item: Series([*_series(data), item], data.places),
    "mustAppend": lambda data, item: Series([*_series(data), item], data.places),
    "prepend": lambda data, item: Series([item, *_series(data)]),
    "concat": lambda *lists: Series(item for each in lists for item in _series(each)),
    "uniq": _unique,
    "has": lambda item, data: item in _series(data),
    "without": lambda data, *items: Series(item for item in _series(data) if item not in items),
    "compact": lambda data: Series(item for item in _series(data) if is_true(item)),
    "reverse": lambda data: Series(reversed(_series(data))),
    "sortAlpha": lambda data: Series(sorted(shown(item) for item in _series(data))),
    # YAML and JSON
    "toYaml": to_yaml,
    "mustToYaml": to_yaml,
    "toYamlPretty": to_yaml,
    "fromYaml": _from_yaml,
    "fromYamlArray": _from_yaml,
    "fromJson": _from_yaml,
    "toJson": _to_json,
    "mustToJson": _to_json,
    "toRawJson": _to_json,
    "toPrettyJson": lambda data: _to_json(data, 2),
    **dict.fromkeys(
        (
            *("now", "date", "dateInZone", "htmlDate", "ago", "unixEpoch", "randAlphaNum", "randAlpha", "randNumeric"),
            *("randAscii", "randInt", "uuidv4", "genCA", "genSelfSignedCert", "genSignedCert", "genPrivateKey"),
            *("derivePassword", "htpasswd", "bcrypt", "getHostByName", "lookup", "shuffle", "randBytes"),
        ),
        lambda *_: Gap("a value that depends on randomness, time or the cluster"),
    ),
}
#: For these functions the argument None means a missing value, not an empty one.
SHOW = frozenset(("quote", "squote", "toString", "int", "int64", "print", "printf", "cat", "join", "float64"))


def _pattern(text: Data) -> str:
    """Check a pattern from a chart; one that could be slow is rejected."""
    pattern = _text(text)
    if len(pattern) > 200 or re.search(r"[+*}][+*{]|\)[+*{]", pattern):
        raise ValueError("the pattern is too complex to evaluate")
    return pattern
