"""Structured documents as trees in which every value keeps its location, and text inside their values.

The readers of JSON and YAML build these; the sources of DeepSpeed, Accelerate, Kubernetes and so on walk them.

Every assignment is one member of a flat object, with the dotted name under which it is known: `Dataset.batch_size`. A
macro of gin (`%BATCH_SIZE`) is replaced by the value that the same file gives it, and is a placeholder otherwise. Of a
value that continues on further lines only the first line is read.

A rendered template, a workload merged with its runtime and a patched manifest exist in no file. They are read like any
other text; a span in them is a span of the file that the piece comes from.

The value of a scalar differs from its source: quotes, escapes, indentation and folded lines are gone. The claims of a
launch line must still point at the characters that the user typed.
"""

from __future__ import annotations

import ast
import bisect
import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import spend, truncate
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteKind,
    Places,
    Plain,
    Relation,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
)
from preflight.sources.base import SourceFile
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Place, Text
from preflight.sources.shell.shell_document import Piece as CodePiece

#: Characters of a spelling; a longer one is cut.
_MAX_SPELLING_LENGTH = 120
_MAX_VALUE_LENGTH = 100_000
#: More faults from one file add no information.
_MAX_NOTES = 20


class Kind(enum.Enum):
    """The kind of a value."""

    OBJECT = "object"
    ARRAY = "array"
    SCALAR = "scalar"
    #: A placeholder that is replaced before the file is used: `{{ .Values.gpus }}`, `${BATCH}`, `@NODES@`.
    TEMPLATE = "template"
    #: Not a value of this syntax.
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Node:
    """One value; `text[start:end]` is its text; `value` is the value of a scalar.

    For a template `value` is the text as written. Duplicate keys of an object are all kept; the last is effective.
    """

    kind: Kind
    start: int
    end: int
    value: Plain = None
    members: tuple[Member, ...] = ()
    items: tuple[Node, ...] = ()

    def member(self, *path: str) -> Member | None:
        """Return the effective member at the end of a path of keys; None if there is none."""
        found: Member | None = None
        node = self
        for key in path:
            found = next((member for member in reversed(node.members) if member.key == key), None)
            if found is None:
                return None
            node = found.node
        return found

    def at(self, *path: str) -> Node | None:
        """Return the value at the end of a path of keys; None if there is none."""
        found = self.member(*path)
        return found.node if found is not None else None

    def items_at(self, *path: str) -> tuple[Node, ...]:
        """Return the items of the list at the end of a path of keys; empty if there is none."""
        node = self.at(*path)
        return node.items if node is not None else ()

    def members_at(self, *path: str) -> tuple[Member, ...]:
        """Return the effective members (the last of duplicate keys) of the object at a key path, if any."""
        node = self.at(*path)
        return node.in_force if node is not None else ()

    def text(self, *path: str) -> str:
        """Return the string at the end of a path of keys; empty if there is none, or if it is unknown."""
        node = self.at(*path) if path else self
        return node.value if node is not None and node.kind is Kind.SCALAR and isinstance(node.value, str) else ""

    @property
    def in_force(self) -> tuple[Member, ...]:
        """Return the members; for duplicate keys the last one."""
        return tuple({member.key: member for member in self.members}.values())

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Member]]:
        """Yield every effective member that is not an object, with the path of its keys."""
        for member in self.in_force:
            here = (*path, member.key)
            if member.node.kind is Kind.OBJECT:
                yield from member.node.leaves(here)
            else:
                yield here, member


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object."""

    key: str
    key_start: int
    key_end: int
    node: Node


@dataclass(frozen=True, slots=True)
class Fault:
    """A location that does not follow the syntax. `hjson`: whether DeepSpeed's own reader (Hjson) accepts it
    nevertheless.
    """

    message: str
    start: int
    end: int
    hjson: bool = False
    template: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """The readable part of a file, and its faults."""

    root: Node | None
    faults: tuple[Fault, ...]


def value_of(node: Node) -> Value:
    """Convert a value to the value of a claim: a template becomes unresolved, a list of known scalars a tuple."""
    if node.kind is Kind.SCALAR:
        if isinstance(node.value, str) and len(node.value) > _MAX_VALUE_LENGTH:
            return Unresolved(f"a text of {len(node.value)} characters, too long for a setting")
        return Known(node.value)
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{str(node.value)[:60]}: a placeholder that is replaced later")
    if node.kind is Kind.ARRAY and all(item.kind is Kind.SCALAR for item in node.items):
        spend(len(node.items))
        return Known(tuple(item.value for item in node.items))  # type: ignore[misc]
    return Unresolved(f"a {node.kind.value} where a single value was expected")


@dataclass(slots=True)
class NodeClaims:
    """Collects the claims of one configuration file: source, scope and strength are given once, then each claim takes
    one call.
    """

    file: SourceFile
    source: str
    scope: Scope = WHOLE_JOB
    strength: Strength = Strength.CONFIG
    claims: list[Claim] = field(default_factory=list)
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.file.path, self.file.text)

    def notes(self, document: Document) -> list[Note]:
        """Return the syntax faults of the file, each as a located note; the first twenty."""
        kinds = {True: NoteKind.TEMPLATE, False: NoteKind.MALFORMED}
        return [
            Note(kinds[one.template], f"{self.file.path}: {one.message}", self.places.span(one.start, one.end))
            for one in document.faults[:_MAX_NOTES]
        ]

    def span(self, node: Node) -> Span:
        """Return the location of a value."""
        return self.places.span(node.start, node.end)

    def spelling(self, member: Member) -> str:
        """Return the pair as written (`num_machines: 2`), on one line."""
        return " ".join(self.file.text[member.key_start : member.node.end].split())[:_MAX_SPELLING_LENGTH]

    def add(
        self,
        quantity: str,
        value: Value,
        member: Member,
        *,
        relation: Relation = Relation.SETS,
        strength: Strength | None = None,
        scope: Scope | None = None,
        because: tuple[Claim, ...] = (),
    ) -> Claim:
        """Add the claim that `quantity` is `value`, located at the value of `member`."""
        claim = Claim(
            quantity=quantity,
            value=value,
            span=self.span(member.node),
            spelling=self.spelling(member),
            source=self.source,
            scope=self.scope if scope is None else scope,
            strength=self.strength if strength is None else strength,
            relation=relation,
            because=because,
            origin=self.places.value_span(member.node.start, member.node.end),
        )
        self.claims.append(claim)
        return claim

    def add_key(
        self, quantity: str, value: Value, member: Member, spelling: str = "", *, because: tuple[Claim, ...] = ()
    ) -> Claim:
        """Add the claim that `quantity` is `value`, located at the key of `member`, whose text is the default
        spelling.
        """
        span = self.places.span(member.key_start, member.key_end)
        shown = spelling or self.file.text[member.key_start : member.key_end]
        claim = Claim(quantity, value, span, shown, self.source, self.scope, self.strength, because=because)
        self.claims.append(claim)
        return claim

    def add_member(
        self,
        quantity: str,
        member: Member | None,
        convert: Callable[[Value], Value] = lambda value: value,
        *,
        relation: Relation = Relation.SETS,
        scope: Scope | None = None,
    ) -> Claim | None:
        """Claim the value of a member; nothing if it does not exist, or is null."""
        if member is None or (member.node.kind is Kind.SCALAR and member.node.value is None):
            return None
        return self.add(quantity, convert(value_of(member.node)), member, relation=relation, scope=scope)


#: Suffixes of such files.
SUFFIXES = (".gin", ".ini", ".cfg", ".conf")
_MAX_LINES = 20_000
_MAX_ASSIGNED_LENGTH = 2_000
_SECTION = re.compile(r"\[([\w ./:-]+)\][ \t]*(?:[#;].*)?$")
_BLOCK = re.compile(r"([A-Za-z_][\w./]*)[ \t]*:[ \t]*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"([ \t]*)([A-Za-z_][\w./ -]*?)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$")
_COMMENT = re.compile(r"[ \t]+[#;].*$")
_MACRO = re.compile(r"%([A-Za-z_][\w./]*)$")


def parse(text: str) -> Document:
    """Return the assignments of a file. Other lines are skipped: these formats have no errors that matter here."""
    members: list[Member] = []
    macros: dict[str, Node] = {}
    section, indented, start = "", False, 0
    for line in truncate(text.split("\n"), _MAX_LINES, "lines"):
        before, start = start, start + len(line) + 1
        heading = _SECTION.match(line) or _BLOCK.match(line)
        if heading is not None:
            section, indented = heading[1], not line.startswith("[")
            continue
        match = _ASSIGNMENT.match(line)
        if match is None or len(match[3]) > _MAX_ASSIGNED_LENGTH:
            continue
        if indented and not match[1]:
            section, indented = "", False
        at = before + match.start(3)
        node = _value(match[3], at, macros)
        name = f"{section}.{match[2]}" if section else match[2]
        if not section:
            macros[match[2]] = node
        members.append(Member(name.replace("/", "."), before + match.start(2), before + match.end(2), node))
    return Document(Node(Kind.OBJECT, 0, len(text), members=tuple(members)), ())


def _value(written: str, start: int, macros: dict[str, Node]) -> Node:
    shown = _COMMENT.sub("", written)
    end = start + len(shown)
    macro = _MACRO.match(shown)
    if macro is not None:
        known = macros.get(macro[1])
        return known if known is not None else Node(Kind.TEMPLATE, start, end, shown)
    value: Plain = shown
    try:
        read = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        read = shown
    if isinstance(read, (str, int, float, bool)) or read is None:
        value = read
    return Node(Kind.SCALAR, start, end, value)


def document_of(file: SourceFile) -> Document:
    """Return the tree of a configuration file, in the syntax of its suffix; YAML if the suffix is not known."""
    if file.path.lower().endswith((".json", ".jsonc", ".hjson")):
        from preflight.sources.formats import lenient_json

        return lenient_json.parse(file.text)
    if file.path.lower().endswith(".toml"):
        from preflight.sources.formats import lenient_toml

        return lenient_toml.parse(file.text)
    if file.path.lower().endswith(SUFFIXES):
        return parse(file.text)
    from preflight.sources.formats import lenient_yaml

    return lenient_yaml.parse(file.text)


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
        """Return the origin of characters `start` to `end` of the piece."""
        return replace(self, start=self.start + start, end=self.start + end) if self.exact else self

    @property
    def span(self) -> Span:
        """Return the whole range as a span."""
        return self.file.span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters and their origin."""

    text: str
    origin: Origin

    def cut(self, start: int, end: int) -> Piece:
        """Return characters `start` to `end`."""
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
        """Return the origin of characters `start` to `end`; if they come from several files, that of the first."""
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
        """Return the pieces of the text."""
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
        """Return the span in the file that the characters come from."""
        found = self._origins.at(start, end)
        return super().span(start, end) if found is None else found.span

    def value_span(self, start: int, end: int) -> Span | None:
        """Return the location where the value of these characters is assigned, if a template fills it in."""
        found = self._origins.at(max(start, end - 1), end)
        return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class ComposedFile(SourceFile):
    """A composed text that is read in place of a file; `path` is the path of that file."""

    origins: Origins = field(default_factory=lambda: Origins(()))


def compose_file(file: SourceFile, pieces: Sequence[Piece]) -> ComposedFile:
    """Return the pieces as a file that is read in place of `file`. Raises TooLong."""
    origins = Origins(pieces)
    return ComposedFile(file.path, origins.text, file.sha256, len(origins.text), origins)


def places_of(file: SourceFile) -> Places:
    """Return the places of a file, composed or not."""
    return ComposedPlaces(file.path, file.origins) if isinstance(file, ComposedFile) else Places(file.path, file.text)


def file_text_of(file: SourceFile) -> FileText:
    """Return the text of a file, composed or not, for readers of shell code."""
    if isinstance(file, ComposedFile):
        return ComposedFileText(file.path, file.origins)
    return FileText(file.path, file.text)


def file_pieces(file: SourceFile) -> tuple[Piece, ...]:
    """Return the pieces of a file, for use in another composed text."""
    if isinstance(file, ComposedFile):
        return file.origins.pieces()
    return (Piece(file.text, Origin(FileText(file.path, file.text), 0, len(file.text))),)


def shift_node(node: Node, by: int) -> Node:
    """Return a copy of the node, moved `by` characters towards the end of the text."""
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
    """Return the characters of a scalar, each with its location; a placeholder becomes a gap."""
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
    """Yield the lines of `|` or `>` without their common indentation."""
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
    """Split a range of a file: unchanged text, and the replacement of each escape or folded line."""
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
