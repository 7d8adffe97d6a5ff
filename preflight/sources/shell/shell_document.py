"""Shell code that can be parsed, with the location of each character in a file.

A script file is one document. So is the string after `bash -c`: its characters come from a quoted string, from
variables assigned elsewhere, or are unknown. Each piece keeps its origin, so that a word found deep inside still points
at the line where the user typed it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import Span
from preflight.sources.base import UnknownOrigin

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
#: `$(((a)) && b || c)`: an arithmetic test in a substitution, which the grammar takes for an arithmetic expansion.
_TEST_IN_SUBSTITUTION = re.compile(r"\$\(\(\((?P<test>[^()\n]*)\)\)(?=\s*(?:&&|\|\|))")
_LEAD = re.compile(r"(?:[ \t\n]|\\\n)*")
_PLAIN = re.compile(r"""[A-Za-z0-9_./:=,+@%-]+|"[^"\\$`{\n]{1,1000}"|'[^'\\{\n]{1,1000}'""")
#: Represents an unknown part in the text of a document; one per part.
GAP = "\ue000"


class FileText:
    """The text of one file with its line starts, so that creating a span takes two binary searches."""

    __slots__ = ("_spans", "_starts", "path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self._starts: list[int] | None = None
        self._spans: dict[tuple[int, int], Span] = {}

    def span(self, start: int, end: int) -> Span:
        """Return the span of characters `start` to `end`; cached, because loops request the same places repeatedly."""
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
        snippet = self.text[starts[first] : min(stop, starts[first] + MAX_SNIPPET_LENGTH + 1)].rstrip("\r")
        return Span(
            self.path,
            first + 1,
            start - starts[first] + 1,
            last + 1,
            end - starts[last] + 1,
            snippet[:MAX_SNIPPET_LENGTH],
        )


# Pieces of text are never changed, but not declared `frozen`: that makes creating one four times as slow, and a script
# has tens of thousands of them.
@dataclass(slots=True, unsafe_hash=True)
class Place:
    """Characters `start` to `end` of a file."""

    file: FileText = field(repr=False)
    start: int
    end: int

    @property
    def span(self) -> Span:
        """Return the place as a span."""
        return self.file.span(self.start, self.end)

    def within(self, other: Place) -> bool:
        """Return whether `other` contains this place."""
        return self.file is other.file and other.start <= self.start and self.end <= other.end


@dataclass(slots=True, unsafe_hash=True)
class Lit:
    """Known characters.

    Args:
        text: the characters.
        place: where they come from.
        exact: whether character i is at `place.start + i` in the file.
        spelled: how the user wrote them if that differs: `$TP` for `4`.
    """

    text: str
    place: Place
    exact: bool = True
    spelled: str | None = None

    @property
    def spelling(self) -> str:
        """Return the text as the user wrote it."""
        return self.text if self.spelled is None else self.spelled

    def cut(self, start: int, end: int) -> Lit:
        """Return characters `start` to `end` of this text."""
        if start == 0 and end == len(self.text):
            return self
        if not self.exact:
            return Lit(self.text[start:end], self.place, False, self.spelled)
        place = Place(self.place.file, self.place.start + start, self.place.start + end)
        return Lit(self.text[start:end], place)


@dataclass(slots=True, unsafe_hash=True)
class Hole:
    """Characters that are unknown before run time.

    Args:
        why: what they depend on.
        place: where they are used.
        spelling: the text as the user wrote it.
        many: whether they may be any number of words, or none, where unquoted.
        origin: where they come from, if any reader depends on it.
    """

    why: str
    place: Place
    spelling: str
    many: bool = False
    origin: UnknownOrigin | None = None


@dataclass(slots=True, unsafe_hash=True)
class Alt:
    """One of several texts, depending on a branch."""

    options: tuple[Text, ...]
    place: Place
    spelling: str
    #: Levels of alternatives within alternatives.
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.depth = 1 + max(
            (piece.depth for text in self.options for piece in text if isinstance(piece, Alt)), default=0
        )


Piece: TypeAlias = "Lit | Hole | Alt"
Text: TypeAlias = "tuple[Piece, ...]"


def cover(pieces: Text, fallback: Place) -> Place:
    """Return the smallest place that contains all `pieces`; `fallback` if they come from several files."""
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


#: What follows a variable behind the first piece of a word: the grammar (0.25.1) ends the word at the `$` of `$A/$B/c`.
_AFTER_LATER_VARIABLE = re.compile(r"(?<=[\w/,.:=@%+}-])(\$[A-Za-z_]\w*)[,/.+-]")


def _readable(text: str) -> str:
    """Return the text as the grammar reads it, of the same length: in ASCII, such a test as a subshell, and a colon
    behind some variables.
    """
    return _AFTER_LATER_VARIABLE.sub(
        _with_colon, _TEST_IN_SUBSTITUTION.sub(r"$( (\g<test>) ", _NOT_ASCII.sub("Z", text))
    )


def _with_colon(match: re.Match[str]) -> str:
    """Return the variable with a colon behind it, but in arithmetic and in braces."""
    text, at = match.string, match.start()
    line = text.rfind("\n", 0, at) + 1
    inside = any(text.rfind(opening, line, at) > text.rfind(closing, line, at) for opening, closing in _KEPT)
    return match[0] if inside else f"{match[1]}:"


_KEPT = (("((", "))"), ("{", "}"))


class Document:
    """Parsable shell code made of pieces.

    `text` has one character per known character and one `GAP` per unknown piece. The parser's nodes carry offsets into
    it, because every non-ASCII character is replaced by one ASCII character before parsing.
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
        #: Where the text begins in its file, when it is an unchanged part of that file.
        only = kept[0] if len(kept) == 1 else None
        self._origin = only.place if isinstance(only, Lit) and only.exact and only.text == self.text else None

    @classmethod
    def of_file(cls, path: str, text: str) -> Document:
        """Return the document for a whole file."""
        whole = Place(FileText(path, text), 0, len(text))
        return cls((Lit(text, whole),), whole)

    @property
    def root(self) -> Node:
        """Return the root of the syntax tree; parsed on first use."""
        if self._root is None:
            self._root = _parser().parse(_readable(self.text).encode("ascii")).root_node
        return self._root

    def holes(self) -> Iterator[Hole]:
        """Yield the unknown parts of the text."""
        return (piece for piece in self._pieces if isinstance(piece, Hole))

    def slice(self, start: int, end: int) -> Text:
        """Return the pieces of `text[start:end]`, each with its origin."""
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
        """Return the location of `text[start:end]` in a file."""
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
        """Return the word `text[start:end]` if it is literal, in quotes or not: no expansion, brace or escape."""
        if self._origin is None or _PLAIN.fullmatch(self.text, start, end) is None:
            return None
        if self.text[start] in "\"'":
            start, end = start + 1, end - 1
        return Lit(self.text[start:end], self.place(start, end))

    def start_of(self, node: Node) -> int:
        """Return the start of a node, without the blanks and continued lines that the grammar includes before it."""
        match = _LEAD.match(self.text, node.start_byte, node.end_byte)
        return match.end() if match is not None else node.start_byte

    def text_of(self, node: Node) -> str:
        """Return the text of a node."""
        return self.text[node.start_byte : node.end_byte]

    def place_of(self, node: Node) -> Place:
        """Return the location of a node in a file."""
        return self.place(node.start_byte, node.end_byte)


_PARSER: list[Parser] = []


def _parser() -> Parser:
    if not _PARSER:
        import tree_sitter
        import tree_sitter_bash

        _PARSER.append(tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())))
    return _PARSER[0]


def _clean(text: str) -> str:
    """Replace text that the grammar cannot parse, keeping the number of characters."""
    if "\r" in text:
        text = text.replace("\\\r\n", " \\\n").replace("\r\n", " \n")
    return text.replace("\x00", " ") if "\x00" in text else text
