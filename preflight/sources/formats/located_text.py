"""Text in which every character keeps its location: composed of pieces of several files, or code in a YAML scalar.

A rendered template, a workload merged with its runtime and a patched manifest exist in no file. They are read like any
other text; a span in them is a span of the file that the piece comes from.

The value of a scalar differs from its source: quotes, escapes, indentation and folded lines are gone. The claims of a
launch line must still point at the characters that the user typed.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import spend
from preflight.model.job import Places, Span
from preflight.sources.base import SourceFile
from preflight.sources.formats.structured import Member, Node
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Place, Text
from preflight.sources.shell.shell_document import Piece as CodePiece

#: Characters of one composed text; real manifests are shorter.
MAX_LENGTH = 4_000_000


class TooLong(ValueError):
    """The text would be longer than `MAX_LENGTH` characters."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a piece of text comes from: characters `start` to `end` of a file.

    Args:
        exact: whether character i of the piece is character `start + i` of the file; otherwise the piece comes from the
        whole range.
        value: the location where its value is assigned, for text that a template fills in.
    """

    file: FileText
    start: int
    end: int
    exact: bool = True
    value: Span | None = None

    def cut(self, start: int, end: int) -> Origin:
        """The origin of characters `start` to `end` of the piece."""
        return replace(self, start=self.start + start, end=self.start + end) if self.exact else self

    @property
    def span(self) -> Span:
        """The whole range as a span."""
        return self.file.span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters and where they come from."""

    text: str
    origin: Origin

    def cut(self, start: int, end: int) -> Piece:
        """Characters `start` to `end`."""
        return Piece(self.text[start:end], self.origin.cut(start, end))


class Origins:
    """Maps ranges of a composed text to their origins."""

    __slots__ = ("_origins", "_starts", "text")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._starts: list[int] = []
        self._origins: list[Origin] = []
        total = 0
        for piece in pieces:
            if piece.text:
                self._starts.append(total)
                self._origins.append(piece.origin)
                total += len(piece.text)
                if total > MAX_LENGTH:
                    raise TooLong(f"more than {MAX_LENGTH} characters")
        spend(total // 64)
        self.text = "".join(piece.text for piece in pieces)

    def at(self, start: int, end: int) -> Origin | None:
        """The origin of characters `start` to `end`; if they come from several files, that of the first."""
        if not self._starts:
            return None
        start = max(0, min(start, len(self.text) - 1))
        end = max(start, min(end, len(self.text)))
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_right(self._starts, max(start, end - 1)) - 1
        begin = self._within(first, start, start)
        if first == last:
            return self._within(first, start, end)
        stop = self._within(last, end, end)
        if stop.file is begin.file and stop.end >= begin.start:
            return replace(begin, end=max(begin.end, stop.end))
        return self._within(first, start, min(end, self._starts[first + 1]))

    def pieces(self) -> tuple[Piece, ...]:
        """The pieces that the text was made of."""
        ends = [*self._starts[1:], len(self.text)]
        found = zip(self._starts, ends, self._origins, strict=True)
        return tuple(Piece(self.text[start:end], origin) for start, end, origin in found)

    def _within(self, index: int, start: int, end: int) -> Origin:
        return self._origins[index].cut(start - self._starts[index], end - self._starts[index])


class ComposedFileText(FileText):
    """The text in the form that readers of shell code need."""

    __slots__ = ("_origins",)

    def __init__(self, path: str, origins: Origins) -> None:
        super().__init__(path, origins.text)
        self._origins = origins

    def _span(self, start: int, end: int) -> Span:
        found = self._origins.at(start, end)
        return super()._span(start, end) if found is None else found.span


class ComposedPlaces(Places):
    """The text in the form that readers of configuration need."""

    def __init__(self, path: str, origins: Origins) -> None:
        super().__init__(path, origins.text)
        self._origins = origins

    def span(self, start: int, end: int) -> Span:
        """The span in the file that the characters come from."""
        found = self._origins.at(start, end)
        return super().span(start, end) if found is None else found.span

    def value_span(self, start: int, end: int) -> Span | None:
        """The location where the value of these characters is assigned, if a template fills it in."""
        found = self._origins.at(max(start, end - 1), end)
        return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class ComposedFile(SourceFile):
    """A composed text that is read in place of a file; `path` is the path of that file."""

    origins: Origins = field(default_factory=lambda: Origins(()))


def compose_file(file: SourceFile, pieces: Sequence[Piece]) -> ComposedFile:
    """The pieces as a file that is read in place of `file`. Raises TooLong."""
    origins = Origins(pieces)
    return ComposedFile(file.path, origins.text, file.sha256, len(origins.text), origins)


def places_of(file: SourceFile) -> Places:
    """The places of a file, composed or not."""
    return ComposedPlaces(file.path, file.origins) if isinstance(file, ComposedFile) else Places(file.path, file.text)


def file_text_of(file: SourceFile) -> FileText:
    """The text of a file, composed or not, for readers of shell code."""
    if isinstance(file, ComposedFile):
        return ComposedFileText(file.path, file.origins)
    return FileText(file.path, file.text)


def file_pieces(file: SourceFile) -> tuple[Piece, ...]:
    """The pieces of a file, for use in another composed text."""
    if isinstance(file, ComposedFile):
        return file.origins.pieces()
    return (Piece(file.text, Origin(FileText(file.path, file.text), 0, len(file.text))),)


def shift_node(node: Node, by: int) -> Node:
    """The same value, moved `by` characters towards the end of the text."""
    spend()
    return Node(
        node.kind,
        node.start + by,
        node.end + by,
        node.value,
        tuple(Member(m.key, m.key_start + by, m.key_end + by, shift_node(m.node, by)) for m in node.members),
        tuple(shift_node(item, by) for item in node.items),
    )


#: Also `${{inputs.name}}` of pipelines, whose dollar belongs to the placeholder.
_TEMPLATE = re.compile(r"\$?\{\{.{0,400}?\}\}|\{%.{0,400}?%\}|<%.{0,400}?%>", re.DOTALL)
_HEADER = re.compile(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n?")
_ESCAPE = re.compile(r"\\(?:\r?\n[ \t]*|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)|[ \t]*\r?\n\s*", re.DOTALL)
_FOLD = re.compile(r"[ \t]*\r?\n\s*")
_QUOTE = re.compile(r"''|[ \t]*\r?\n\s*")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "_": "\xa0"}


def code_of(file: FileText, node: Node) -> Text:
    """The characters of a scalar, each with its location; a placeholder becomes a gap."""
    return tuple(_with_gaps(file, _pieces(file, node)))


def _pieces(file: FileText, node: Node) -> Iterator[Lit]:
    source = file.text[node.start : node.end]
    if source[:1] in ("|", ">") and (header := _HEADER.match(source)) is not None:
        yield from _block(file, node.start + header.end(), node.end, folded=source[0] == ">")
    elif source[:1] == '"' and source[-1:] == '"' and len(source) > 1:
        yield from _replace(file, node.start + 1, node.end - 1, _ESCAPE)
    elif source[:1] == "'" and source[-1:] == "'" and len(source) > 1:
        yield from _replace(file, node.start + 1, node.end - 1, _QUOTE)
    else:
        yield from _replace(file, node.start, node.end, _FOLD)


def _block(file: FileText, start: int, end: int, *, folded: bool) -> Iterator[Lit]:
    """The lines of `|` or `>` without their common indentation."""
    lines = file.text[start:end].split("\n")
    indent = next((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), 0)
    offset = start
    for number, line in enumerate(lines):
        bare = line.rstrip("\r")
        content = bare[indent:] if bare[:indent].strip(" ") == "" else ""
        if bare.strip() and len(bare) - len(bare.lstrip(" ")) < indent and not _TEMPLATE.fullmatch(bare.strip()):
            return
        whole_line = _TEMPLATE.fullmatch(bare.strip()) is not None
        if content and not whole_line:
            yield Lit(content, Place(file, offset + indent, offset + len(bare)))
        if number + 1 < len(lines):
            at = offset + len(line)
            following = lines[number + 1].rstrip("\r")[indent:]
            joins = folded and bool(content) and bool(following) and not following.startswith((" ", "\t"))
            yield Lit(" " if joins else "\n", Place(file, at, at + 1))
        offset += len(line) + 1


def _replace(file: FileText, start: int, end: int, pattern: re.Pattern[str]) -> Iterator[Lit]:
    """Split a range of a file: text that stays as it is, and what each escape or folded line stands for."""
    at = start
    for match in pattern.finditer(file.text, start, end):
        if match.start() > at:
            yield Lit(file.text[at : match.start()], Place(file, at, match.start()))
        text = _meaning(match[0])
        if text:
            yield Lit(text, Place(file, match.start(), match.end()), exact=len(text) == 1)
        at = match.end()
    if at < end:
        yield Lit(file.text[at:end], Place(file, at, end))


def _meaning(written: str) -> str:
    if written == "''":
        return "'"
    if written.startswith("\\"):
        if written[1:2] in ("\n", "\r"):
            return ""
        if written[1] in "xu" and len(written) > 2:
            return chr(int(written[2:], 16))
        return _ESCAPED.get(written[1], written[1])
    # A folded line: a single line end becomes a blank, of several the first is dropped.
    return "\n" * (written.count("\n") - 1) or " "


def _with_gaps(file: FileText, pieces: Iterator[Lit]) -> Iterator[CodePiece]:
    for piece in pieces:
        at = 0
        for match in _TEMPLATE.finditer(piece.text) if piece.exact else ():
            if match.start() > at:
                yield piece.cut(at, match.start())
            place = Place(file, piece.place.start + match.start(), piece.place.start + match.end())
            yield Hole(f"{match[0][:60]} is filled in later", place, match[0], many=True)
            at = match.end()
        if at < len(piece.text):
            yield piece.cut(at, len(piece.text))
