"""Reads YAML with placeholders or mistakes, keeps the location of every value, and reports the mistakes.

PyYAML's events are used rather than its nodes: our own builder bounds depth, size and aliases, and continues where a
whole-file parser would give up. Placeholders of Helm, Jinja and the like are masked first, so that a chart is YAML with
some unknown values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from preflight._util.budget import note_skipped, spend
from preflight.model.job import Plain
from preflight.sources.formats.structured import Document, Fault, Kind, Member, Node

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Configuration is not nested more deeply.
MAX_DEPTH = 60
#: A file with more values than this, aliases counted where they are used, is data and not configuration.
MAX_NODES = 200_000
#: Documents of one file that are read.
MAX_DOCUMENTS = 500

#: How many top-level blocks a fault may cost before the whole document is given up.
_MAX_CUTS = 3

#: Replaces a masked character: printable in YAML, and not used in files.
_MASK = "\ue000"
_TEMPLATE = re.compile(
    r"\{\{-?\s?/\*.{0,4000}?\*/\s?-?\}\}|\{\{.{0,400}?\}\}|\{%.{0,400}?%\}|<%.{0,400}?%>|\{#.{0,400}?#\}", re.DOTALL
)
_WHOLE_TEMPLATE = re.compile(r"\$\{[^{}\n]{1,200}\}|@[A-Za-z_]\w{0,100}@|<[A-Za-z][\w .-]{0,80}>")
_BOUNDARY = re.compile(r"^(?:---|\.\.\.)(?=[ \t\r\n]|$)", re.MULTILINE)
#: Characters that YAML does not allow in a stream; one of them must not cost the file.
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: The end of a line after which a block begins: `key: |`, `- >-`.
_BLOCK = re.compile(r"(?::|-)[ \t]+[|>][-+0-9]{0,2}[ \t]*(?:#.*)?\r?$")
_TOP_KEY = re.compile(r"^[^\s#\-][^\n]*$", re.MULTILINE)

_resolver: Any = Resolver()
_constructor = SafeConstructor()


def parse(text: str) -> Document:
    """Return the first document of `text`; never raises. The root is None if it is empty."""
    found = next(iter(parse_all(text)), None)
    return found if found is not None else Document(None, (Fault("the file is empty", 0, 0),))


def parse_all(text: str) -> tuple[Document, ...]:
    """Return every document of `text` that is not empty, in order; never raises. Offsets count from the text's
    start.
    """
    masked = _mask_placeholders(_UNPRINTABLE.sub("?", text.replace(_MASK, "?")))
    found = []
    for start, end in _pieces(masked):
        document = _document(text, masked[start:end], start)
        if document.root is not None or document.faults:
            found.append(document)
        if len(found) >= MAX_DOCUMENTS:
            note_skipped(f"only the first {MAX_DOCUMENTS} documents were read")
            break
    return tuple(found)


def _mask_placeholders(text: str) -> str:
    """Return `text` with every character of its placeholders replaced, so that all offsets stay valid."""
    if "{{" not in text and "{%" not in text and "<%" not in text:
        return text

    def mask(match: re.Match[str]) -> str:
        return "".join(sign if sign in "\r\n" else _MASK for sign in match[0])

    lines = _TEMPLATE.sub(mask, text).split("\n")
    # A line of nothing but placeholders (`{{- if .Values.gpu }}`) is control flow and not a value.
    control = [_MASK in line and not line.replace(_MASK, "").strip(" \t\r") for line in lines]
    return "\n".join(_blank_control_flow(lines, control))


def _blank_control_flow(lines: list[str], control: list[bool]) -> Iterator[str]:
    """Yield the lines, with control flow replaced by blanks.

    YAML takes the indentation of a block (`|`) from its first line, and blank lines before it must not be longer: such
    a line is therefore given the block's indentation.
    """
    indents = [0] * (len(lines) + 1)
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        is_text = not control[index] and bool(line.strip())
        indents[index] = len(line) - len(line.lstrip(" ")) if is_text else indents[index + 1]
    begins = False
    for index, line in enumerate(lines):
        if control[index]:
            indent = indents[index + 1]
            yield " " * indent + "#" * (len(line) - indent) if begins and len(line) > indent else " " * len(line)
        else:
            begins = _BLOCK.search(line) is not None or (begins and not line.strip())
            yield line


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each document, without the `---` marker but with any text after it on its line."""
    start = 0
    for match in _BOUNDARY.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _document(text: str, masked: str, offset: int) -> Document:
    if not masked.strip():
        return Document(None, ())
    builder = _Builder(text, offset)
    builder.build(masked)
    if builder.stopped_at is not None and builder.root is None:
        # Text before the faulty top-level block can still be read; an unclosed bracket is noticed after it.
        cut = builder.stopped_at + 1
        for _ in range(_MAX_CUTS):
            cut = _last_top_key(masked, cut - 1)
            if cut <= 0:
                break
            again = _Builder(text, offset)
            again.build(masked[:cut])
            if again.root is not None and again.stopped_at is None:
                return Document(again.root, (*builder.faults, *again.faults))
    return Document(builder.root, tuple(builder.faults))


def _last_top_key(text: str, before: int) -> int:
    """Return the start of the last top-level line at or before an offset."""
    matches = [match.start() for match in _TOP_KEY.finditer(text, 0, before + 1)]
    return matches[-1] if matches else 0


@dataclass(slots=True)
class _Open:
    """A mapping or sequence that is still open."""

    mapping: bool
    start: int
    anchor: str | None
    members: list[Member] = field(default_factory=list)
    merged: list[Member] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    key: Node | None = None
    last: int = 0
    size: int = 1


class _Builder:
    """Builds nodes from events; anything invalid becomes a fault and is skipped."""

    def __init__(self, text: str, offset: int) -> None:
        self.text, self.offset = text, offset
        self.root: Node | None = None
        self.faults: list[Fault] = []
        #: Where in the document the parser stopped for good.
        self.stopped_at: int | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._size = 0

    def build(self, masked: str) -> None:
        """Read one document."""
        try:
            for event in yaml.parse(masked, _Loader):
                if not self._take(event):
                    break
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = mark.index if mark is not None else 0
            context = f" {error.context}" if error.context else ""
            self._stop(f"not valid YAML: {error.problem}{context}", where)
        except yaml.YAMLError as error:
            self._stop(f"not valid YAML: {' '.join(str(error).split())[:200]}", 0)

    def _stop(self, message: str, where: int) -> None:
        start = self.offset + where
        end = self.text.find("\n", start)
        self.faults.append(Fault(message, start, end if end >= 0 else len(self.text)))
        self.stopped_at = where

    def _take(self, event: Any) -> bool:
        """Add an event; False ends the reading."""
        spend()
        at = event.start_mark.index
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event), 1, event.anchor)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if len(self._open) >= MAX_DEPTH:
                self._stop(f"more than {MAX_DEPTH} levels deep, too deep for a configuration", at)
                note_skipped(f"values more than {MAX_DEPTH} levels deep, and everything after them, were not read")
                return False
            mapping = isinstance(event, yaml.MappingStartEvent)
            self._open.append(_Open(mapping, self.offset + at, event.anchor))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        if self._size > MAX_NODES:
            self._stop(f"more than {MAX_NODES} values, so it is data and not configuration", at)
            note_skipped(f"it has more than {MAX_NODES} values; the rest was not read")
            return False
        return True

    def _scalar(self, event: Any) -> Node:
        start, end = self.offset + event.start_mark.index, self.offset + event.end_mark.index
        written = self.text[start:end]
        if _MASK in event.value or (not event.style and _WHOLE_TEMPLATE.fullmatch(event.value)):
            return Node(Kind.TEMPLATE, start, end, written)
        return Node(Kind.SCALAR, start, end, _plain(event))

    def _close(self, event: Any) -> None:
        done = self._open.pop()
        end = self.offset + event.end_mark.index
        # The end of a block is only known from the next event; its last value ends it.
        closing = "}" if done.mapping else "]"
        end = max(end if self.text[end - 1 : end] == closing else done.last, done.start)
        if done.mapping:
            own = {member.key for member in done.members}
            members = (*(member for member in done.merged if member.key not in own), *done.members)
            node = Node(Kind.OBJECT, done.start, end, members=members)
        else:
            node = Node(Kind.ARRAY, done.start, end, items=tuple(done.items))
        self._add(node, done.size, done.anchor)

    def _alias(self, event: Any) -> None:
        node, size = self._anchors.get(event.anchor, (None, 1))
        start, end = self.offset + event.start_mark.index, self.offset + event.end_mark.index
        if node is None:
            self.faults.append(Fault(f"the alias *{event.anchor} is used before or inside its anchor", start, end))
            node = Node(Kind.BROKEN, start, end)
        elif node.kind is Kind.SCALAR:
            node = replace(node, start=start, end=end)
        self._add(node, size, None)

    def _add(self, node: Node, size: int, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = (node, size)
        self._size += size if node.kind in (Kind.SCALAR, Kind.TEMPLATE, Kind.BROKEN) else 1
        if not self._open:
            self.root = node if self.root is None else self.root
            return
        parent = self._open[-1]
        parent.size += size
        if parent.size > MAX_NODES:
            self._size = parent.size
        parent.last = max(parent.last, node.end)
        if not parent.mapping:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = node
        else:
            self._pair(parent, parent.key, node)
            parent.key = None

    def _pair(self, parent: _Open, key: Node, node: Node) -> None:
        if key.kind is Kind.SCALAR and key.value == "<<" and self.text[key.start : key.end] == "<<":
            parts = node.items if node.kind is Kind.ARRAY else (node,)
            known = {member.key for member in parent.merged}
            parent.merged.extend(m for part in parts for m in part.in_force if m.key not in known)
            return
        # A key is the text as written: `on:` and `yes:` are not booleans to the programs that read these files.
        quoted = isinstance(key.value, str) and key.kind is Kind.SCALAR
        name = str(key.value) if quoted else " ".join(self.text[key.start : key.end].split())
        parent.members.append(Member(name, key.start, key.end, node))


def _plain(event: Any) -> Plain:
    """Return the scalar as PyYAML's safe loader reads it (YAML 1.1); a date stays text."""
    if event.style or event.tag == "!" or not event.implicit[0]:
        return str(event.value)
    tag = _resolver.resolve(yaml.ScalarNode, event.value, (True, False))
    node = yaml.ScalarNode(tag, event.value)
    try:
        if tag.endswith(":bool"):
            return bool(_constructor.construct_yaml_bool(node))
        if tag.endswith(":int"):
            return int(_constructor.construct_yaml_int(node))
        if tag.endswith(":float"):
            return float(_constructor.construct_yaml_float(node))
    except (ValueError, KeyError):
        return str(event.value)
    return None if tag.endswith(":null") else str(event.value)
