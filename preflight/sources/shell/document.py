"""A stretch of shell code that can be parsed, and the way back from its characters to the file they stand in.

A script file is one document. So is the string behind `bash -c`: its characters come from a quoted string, from
variables assigned elsewhere, from values nobody knows. Each keeps its origin, so that a word found deep inside
still points at the line where the user typed it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from preflight.job import Span
from preflight.job.span import LONGEST_SNIPPET
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_NOT_ASCII = lazy_pattern(r"[^\x00-\x7f]")
_LEAD = lazy_pattern(r"(?:[ \t\n]|\\\n)*")
_PLAIN = lazy_pattern(r"""[A-Za-z0-9_./:=,+@%-]+|"[^"\\$`{\n]{1,1000}"|'[^'\\{\n]{1,1000}'""")
#: Stands in a document's text for a part whose characters are not known; one per part.
GAP = "\ue000"


class FileText:
    """The text of one file with its line starts, so that a span costs two binary searches."""

    __slots__ = ("_spans", "_starts", "path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._starts: list[int] | None = None
        self._spans: dict[tuple[int, int], Span] = {}

    def span(self, start: int, end: int) -> Span:
        """What `span_of` gives for the same offsets; made once, since loops name their places again and again."""
        found = self._spans.get((start, end))
        if found is None:
            found = self._spans[start, end] = self._span(start, end)
        return found

    def _span(self, start: int, end: int) -> Span:
        starts = self._starts
        if starts is None:
            starts = self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        start = max(0, min(start, len(self.text)))
        end = max(start, min(end, len(self.text)))
        first = bisect.bisect_right(starts, start) - 1
        last = bisect.bisect_right(starts, end) - 1
        stop = starts[first + 1] - 1 if first + 1 < len(starts) else len(self.text)
        snippet = self.text[starts[first] : min(stop, starts[first] + LONGEST_SNIPPET + 1)].rstrip("\r")
        return Span(
            self.path,
            first + 1,
            start - starts[first] + 1,
            last + 1,
            end - starts[last] + 1,
            snippet[:LONGEST_SNIPPET],
        )


# The pieces of text are never changed, and not declared `frozen` all the same: that would make each take four times as
# long to make, and a script comes to tens of thousands of them.
@dataclass(slots=True, unsafe_hash=True)
class Place:
    """Characters `start` to `end` of a file."""

    file: FileText = field(repr=False)
    start: int
    end: int

    @property
    def span(self) -> Span:
        """The place as a span."""
        return self.file.span(self.start, self.end)

    def within(self, other: Place) -> bool:
        """Whether `other` contains this place."""
        return self.file is other.file and other.start <= self.start and self.end <= other.end


@dataclass(slots=True, unsafe_hash=True)
class Lit:
    """Known characters. `exact`: character i stands at `place.start + i` in the file."""

    text: str
    place: Place
    exact: bool = True
    spelled: str | None = None

    @property
    def spelling(self) -> str:
        """As the user wrote it where that differs: `$TP` for `4`."""
        return self.text if self.spelled is None else self.spelled

    def cut(self, start: int, end: int) -> Lit:
        """Characters `start` to `end` of it."""
        if start == 0 and end == len(self.text):
            return self
        if not self.exact:
            return Lit(self.text[start:end], self.place, False, self.spelled)
        place = Place(self.place.file, self.place.start + start, self.place.start + end)
        return Lit(self.text[start:end], place)


@dataclass(slots=True, unsafe_hash=True)
class Hole:
    """Characters nobody knows before run time. `many`: unquoted it may be any number of words, none included."""

    why: str
    place: Place
    spelling: str
    many: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Alt:
    """One of several texts, depending on a branch."""

    options: tuple[Text, ...]
    place: Place
    spelling: str


Piece: TypeAlias = "Lit | Hole | Alt"
Text: TypeAlias = "tuple[Piece, ...]"


def cover(pieces: Text, fallback: Place) -> Place:
    """The stretch of file that holds all of `pieces`; `fallback` when they come from several places."""
    first: Place | None = None
    end = 0
    for piece in pieces:
        place = piece.place
        if first is None:
            first, end = place, place.end
        elif place.file is not first.file or place.start < first.start or place.start > end + 2:
            return fallback
        else:
            end = max(end, place.end)
    return fallback if first is None else Place(first.file, first.start, end)


class Document:
    """Parsable shell code made of pieces.

    `text` has one character per known character and one `GAP` per unknown piece; offsets into it are what the
    parser's nodes carry, because everything that is not ASCII is replaced one to one before parsing.
    """

    __slots__ = ("_ends", "_origin", "_pieces", "_root", "fallback", "file", "text")

    def __init__(self, pieces: Text, fallback: Place) -> None:
        kept = tuple(piece for piece in pieces if not isinstance(piece, Lit) or piece.text)
        self._pieces = kept
        self.fallback = fallback
        self.file = fallback.file
        self.text = _clean("".join(piece.text if isinstance(piece, Lit) else GAP for piece in kept))
        self._ends: list[int] = []
        total = 0
        for piece in kept:
            total += len(piece.text) if isinstance(piece, Lit) else 1
            self._ends.append(total)
        self._root: Node | None = None
        #: Where the text begins in its file, when character for character it is a stretch of that file.
        only = kept[0] if len(kept) == 1 else None
        self._origin = only.place if isinstance(only, Lit) and only.exact and only.text == self.text else None

    @classmethod
    def of_file(cls, path: str, text: str) -> Document:
        """The document that is a whole file."""
        whole = Place(FileText(path, text), 0, len(text))
        return cls((Lit(text, whole),), whole)

    @property
    def root(self) -> Node:
        """The root of the syntax tree; parsed at the first use."""
        if self._root is None:
            self._root = _parser().parse(_NOT_ASCII.sub("Z", self.text).encode("ascii")).root_node
        return self._root

    def slice(self, start: int, end: int) -> Text:
        """The pieces of `text[start:end]`, each with its origin."""
        if self._origin is not None and 0 <= start < end <= len(self.text):
            return (Lit(self.text[start:end], self.place(start, end)),)
        return tuple(self._slices(start, end))

    def _slices(self, start: int, end: int) -> Iterator[Piece]:
        index = bisect.bisect_right(self._ends, start)
        while index < len(self._pieces) and start < end:
            piece = self._pieces[index]
            begin = self._ends[index - 1] if index else 0
            stop = min(end, self._ends[index])
            if isinstance(piece, Lit):
                cut = piece.cut(start - begin, stop - begin)
                clean = self.text[start:stop]
                yield cut if cut.text == clean else Lit(clean, cut.place, cut.exact, cut.spelled)
            else:
                yield piece
            start = stop
            index += 1

    def place(self, start: int, end: int) -> Place:
        """Where `text[start:end]` stands in a file."""
        if self._origin is not None:
            return Place(self._origin.file, self._origin.start + start, self._origin.start + end)
        pieces = self.slice(start, end)
        if not pieces:
            return self.fallback
        first, last = pieces[0].place, pieces[-1].place
        if first.file is last.file and first.start <= last.end:
            return Place(first.file, first.start, last.end)
        return first

    def plain_word(self, start: int, end: int) -> Lit | None:
        """The word `text[start:end]` when it means what it says, in quotes or not: no expansion, brace or escape."""
        if self._origin is None or _PLAIN.fullmatch(self.text, start, end) is None:
            return None
        if self.text[start] in "\"'":
            start, end = start + 1, end - 1
        return Lit(self.text[start:end], self.place(start, end))

    def start_of(self, node: Node) -> int:
        """Where a node begins without the blanks and continued lines that the grammar puts in front of it."""
        match = _LEAD.match(self.text, node.start_byte, node.end_byte)
        return match.end() if match is not None else node.start_byte

    def of(self, node: Node) -> str:
        """The text of a node."""
        return self.text[node.start_byte : node.end_byte]

    def at(self, node: Node) -> Place:
        """Where a node stands in a file."""
        return self.place(node.start_byte, node.end_byte)


_PARSER: list[Parser] = []


def _parser() -> Parser:
    if not _PARSER:
        import tree_sitter
        import tree_sitter_bash

        _PARSER.append(tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())))
    return _PARSER[0]


def _clean(text: str) -> str:
    """The text with what the grammar stumbles over replaced, character for character."""
    if "\r" in text:
        text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n")
    return text.replace("\x00", " ") if "\x00" in text else text
