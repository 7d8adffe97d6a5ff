"""Reads TOML with placeholders or mistakes, keeps the location of every value, and reports the mistakes.

The grammar is that of TOML 1.0. `tomllib` gives no locations and stops at the first mistake. This reader records an
invalid line as a fault and continues after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from preflight._util.budget import note_skipped, spend
from preflight._util.spans import Places
from preflight.model.job import Plain
from preflight.sources.formats.structured import Document, Fault, Kind, Member, Node

#: Configuration is not nested more deeply.
MAX_DEPTH = 60
#: A file with more values than this is data and not configuration.
MAX_NODES = 100_000
_MAX_FAULTS = 20
#: Digits of a number; no setting has more.
_MAX_NUMBER_LENGTH = 60

_BLANK = re.compile(r"[ \t]*")
#: Blanks, comments and line ends between the values of an array.
_SPACE = re.compile(r"[ \t\r\n]*(?:#[^\n]*(?:\n[ \t\r\n]*|\Z))*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LINE_REST = re.compile(r"[ \t]*(?:#[^\n]*)?\r?(?=\n|\Z)")
_NUMBER = re.compile(
    r"[+-]?(?:0x[0-9A-Fa-f_]+|0o[0-7_]+|0b[01_]+|(?:inf|nan)\b"
    r"|\d{4}-\d{2}-\d{2}(?:[Tt ][0-9:.]+(?:[Zz]|[+-]\d{2}:\d{2})?)?|\d{2}:\d{2}:[0-9.]+"
    r"|[0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9_]+)?)"
)
_WORD = re.compile(r"(?:true|false)(?![A-Za-z0-9_-])")
_BASIC = re.compile(r'"((?:[^"\\\n]|\\[^\n])*)"')
_LITERAL = re.compile(r"'([^'\n]*)'")
_LONG_BASIC = re.compile(r'"""\r?\n?((?:[^"\\]|\\[\s\S]|"(?!""))*"{0,2})"""')
_LONG_LITERAL = re.compile(r"'''\r?\n?((?:[^']|'(?!''))*'{0,2})'''")
_ESCAPE = re.compile(r"\\(?:[ \t]*\r?\n\s*|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "e": "\x1b"}
#: Placeholders that are replaced before the file is used: `{{ batch }}`, `${BATCH}`, `$BATCH`, `@NODES@`, `<nodes>`.
_TEMPLATE = re.compile(
    r"\{\{[^\n]{0,400}?\}\}|\{%[^\n]{0,400}?%\}|\$\{[^{}\n]{1,200}\}|\$[A-Za-z_]\w*|@[A-Za-z_]\w{0,100}@"
    r"|<[A-Za-z][\w .-]{0,80}>"
)


class _Broken(Exception):
    """The text at `at` does not follow TOML."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


@dataclass(slots=True)
class _Table:
    """A table under construction; `rows` are the items of an array of tables."""

    start: int
    end: int
    key_start: int = 0
    key_end: int = 0
    entries: list[tuple[str, int, int, Node | _Table]] = field(default_factory=list)
    rows: list[_Table] | None = None

    def inner(self, key: str) -> Node | _Table | None:
        return next((value for name, _, _, value in reversed(self.entries) if name == key), None)

    def node(self, depth: int = 0) -> Node:
        """Return the table as a value, without levels that are nested too deeply."""
        if depth > MAX_DEPTH:
            return Node(Kind.BROKEN, self.start, self.end)
        if self.rows is not None:
            return Node(Kind.ARRAY, self.start, self.end, items=tuple(row.node(depth + 1) for row in self.rows))
        members = tuple(
            Member(key, start, end, value.node(depth + 1) if isinstance(value, _Table) else value)
            for key, start, end, value in self.entries
        )
        return Node(Kind.OBJECT, self.start, self.end, members=members)


def parse(text: str) -> Document:
    """Parse `text` as one object; never raises. The root is None if the text is empty."""
    reader = _Reader(text)
    reader.run()
    if not reader.root.entries:
        faults = reader.faults or [Fault("the file is empty", 0, 0)]
        return Document(None, tuple(faults))
    return Document(reader.root.node(), tuple(reader.faults))


class Positions:
    """The lines and columns, counted from 1, of the keys and values of a document."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._root = parse(text).root
        self._lines = Places("", text)

    def of(self, path: Sequence[str | int], *, value: bool = False) -> tuple[int, int]:
        """Return the position of `path`, otherwise of the nearest item around it: its key or, with `value`, its
        value.
        """
        start, node = 0, self._root
        for step in path:
            if node is None:
                break
            if isinstance(step, int):
                node = node.items[step] if step < len(node.items) else None
                start = node.start if node is not None else start
            else:
                member = node.member(step)
                node = member.node if member is not None else None
                start = start if member is None else member.node.start if value else member.key_start
        span = self._lines.span(start, start)
        return span.line, span.column


class _Reader:
    """Reads one file, line by line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = _Table(0, len(text))
        self.faults: list[Fault] = []
        self._table = self.root
        self._nodes = 0

    def run(self) -> None:
        at = 0
        while at < len(self.text):
            space = _SPACE.match(self.text, at)
            at = space.end() if space is not None else at
            if at >= len(self.text):
                return
            spend(1)
            if self._nodes > MAX_NODES:
                note_skipped(f"only the first {MAX_NODES} values were read")
                return
            try:
                end = self._header(at) if self.text[at] == "[" else self._pair(at)
                rest = _LINE_REST.match(self.text, end)
                if rest is None:
                    raise _Broken("nothing may follow a value on its line", end)
                at = rest.end()
            except _Broken as broken:
                line_end = self.text.find("\n", max(at, broken.at))
                line_end = len(self.text) if line_end < 0 else line_end
                if len(self.faults) < _MAX_FAULTS:
                    template = _TEMPLATE.search(self.text, at, line_end)
                    self.faults.append(Fault(broken.message, at, line_end, template=template is not None))
                at = line_end

    def _header(self, at: int) -> int:
        """Read `[a.b]` or `[[a.b]]`, whose table the following keys belong to; return its end."""
        several = self.text.startswith("[[", at)
        keys, end = self._keys(at + (2 if several else 1))
        closing = "]]" if several else "]"
        if not self.text.startswith(closing, end):
            raise _Broken(f"a table name must end in {closing}", end)
        end += len(closing)
        table = self.root
        for key, start, stop in keys[:-1]:
            table = self._below(table, key, start, stop)
        key, start, stop = keys[-1]
        if several:
            found = table.inner(key)
            if not isinstance(found, _Table) or found.rows is None:
                found = _Table(at, end, rows=[])
                table.entries.append((key, start, stop, found))
            assert found.rows is not None
            found.rows.append(_Table(at, end))
            found.end = end
            self._table = found.rows[-1]
        else:
            self._table = self._below(table, key, start, stop)
        return end

    def _below(self, table: _Table, key: str, start: int, end: int) -> _Table:
        found = table.inner(key)
        if isinstance(found, _Table):
            return found.rows[-1] if found.rows else found
        if found is not None:
            raise _Broken(f"{key} already has a value and cannot be a table", start)
        made = _Table(start, end)
        table.entries.append((key, start, end, made))
        return made

    def _pair(self, at: int) -> int:
        node = self._assignment(self._table, at, 0)
        self._table.end = max(self._table.end, node.end)
        return node.end

    def _assignment(self, table: _Table, at: int, depth: int) -> Node:
        """Add `a.b = value` to a table, and return the value."""
        keys, end = self._keys(at)
        end = self._blank(end)
        if not self.text.startswith("=", end):
            raise _Broken("expected `=` and a value after the key", end)
        node = self._value(self._blank(end + 1), depth)
        for key, start, stop in keys[:-1]:
            table = self._below(table, key, start, stop)
        table.entries.append((*keys[-1], node))
        return node

    def _keys(self, at: int) -> tuple[list[tuple[str, int, int]], int]:
        """Return a dotted key: each part with its location, and the end of the key."""
        found: list[tuple[str, int, int]] = []
        while True:
            at = self._blank(at)
            quoted = _BASIC.match(self.text, at) or _LITERAL.match(self.text, at)
            bare = quoted or _BARE.match(self.text, at)
            if bare is None:
                raise _Broken("expected a key: a bare name or a quoted string", at)
            found.append((quoted[1] if quoted is not None else bare[0], at, bare.end()))
            at = self._blank(bare.end())
            if len(found) > MAX_DEPTH:
                raise _Broken(f"a key of more than {MAX_DEPTH} parts", at)
            if not self.text.startswith(".", at):
                return found, at
            at += 1

    def _blank(self, at: int) -> int:
        match = _BLANK.match(self.text, at)
        return match.end() if match is not None else at

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match is not None else at

    def _value(self, at: int, depth: int) -> Node:
        spend(1)
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise _Broken(f"nested more than {MAX_DEPTH} levels deep", at)
        first = self.text[at : at + 1]
        if first in ('"', "'"):
            return self._string(at)
        if first in ("{", "$", "<", "@") and (template := _TEMPLATE.match(self.text, at)) is not None:
            return Node(Kind.TEMPLATE, at, template.end(), template[0])
        if first == "[":
            return self._array(at, depth)
        if first == "{":
            return self._inline(at, depth)
        if (word := _WORD.match(self.text, at)) is not None:
            return Node(Kind.SCALAR, at, word.end(), word[0] == "true")
        number = _NUMBER.match(self.text, at)
        if number is None:
            raise _Broken("not a TOML value: a string needs quotation marks", at)
        return Node(Kind.SCALAR, at, number.end(), _number(number[0]))

    def _string(self, at: int) -> Node:
        for pattern, escaped in ((_LONG_BASIC, True), (_LONG_LITERAL, False), (_BASIC, True), (_LITERAL, False)):
            match = pattern.match(self.text, at)
            if match is not None:
                value = _ESCAPE.sub(_meaning, match[1]) if escaped else match[1]
                template = _TEMPLATE.fullmatch(value)
                kind = Kind.SCALAR if template is None or value.startswith(("<", "@")) else Kind.TEMPLATE
                return Node(kind, at, match.end(), value)
        raise _Broken("the string has no closing quotation mark", at)

    def _array(self, at: int, depth: int) -> Node:
        items: list[Node] = []
        end = self._space(at + 1)
        while not self.text.startswith("]", end):
            if end >= len(self.text):
                raise _Broken("the array has no closing bracket", at)
            items.append(self._value(end, depth + 1))
            end = self._space(items[-1].end)
            if self.text.startswith(",", end):
                end = self._space(end + 1)
            elif not self.text.startswith("]", end):
                raise _Broken("expected a comma between the values of the array", end)
        return Node(Kind.ARRAY, at, end + 1, items=tuple(items))

    def _inline(self, at: int, depth: int) -> Node:
        table = _Table(at, at)
        end = self._space(at + 1)
        while not self.text.startswith("}", end):
            end = self._space(self._assignment(table, end, depth + 1).end)
            if self.text.startswith(",", end):
                end = self._space(end + 1)
            elif not self.text.startswith("}", end):
                raise _Broken("the inline table has no closing brace", end)
        table.end = end + 1
        return table.node(depth)


def _number(text: str) -> Plain:
    """Return a number; a date or a time stays text, because no setting is one."""
    plain = text.replace("_", "")
    if len(plain) > _MAX_NUMBER_LENGTH or re.match(r"\d{4}-\d{2}-|\d{2}:", plain):
        return text
    sign, digits = (plain[0], plain[1:]) if plain[0] in "+-" else ("", plain)
    try:
        if digits[:2] in ("0x", "0o", "0b"):
            return int(digits, 0)
        return float(plain) if re.search(r"[.eE]|inf|nan", digits) else int(sign + digits)
    except ValueError:
        return text


def _meaning(match: re.Match[str]) -> str:
    written = match[0]
    if written[1:2] in ("u", "U") and len(written) > 2:
        code = int(written[2:], 16)
        return chr(code) if code < 0x110000 else "?"
    if written[1:].strip(" \t\r\n") == "":
        return ""
    return _ESCAPED.get(written[1], written[1])
