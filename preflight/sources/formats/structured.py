"""Configuration as a tree whose values keep their location, whichever syntax it was written in.

The readers of JSON and YAML build these; the sources of DeepSpeed, Accelerate, Kubernetes and so on walk them.

Every assignment is one member of a flat object, with the dotted name under which it is known: `Dataset.batch_size`. A
macro of gin (`%BATCH_SIZE`) is replaced by the value that the same file gives it, and is a placeholder otherwise. Of a
value that continues on further lines only the first line is read.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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

    For a template `value` is the text as written. Duplicate keys of an object are all kept; the last is in force.
    """

    kind: Kind
    start: int
    end: int
    value: Plain = None
    members: tuple[Member, ...] = ()
    items: tuple[Node, ...] = ()

    def member(self, *path: str) -> Member | None:
        """The member in force at the end of a path of keys; None if there is none."""
        found: Member | None = None
        node = self
        for key in path:
            found = next((member for member in reversed(node.members) if member.key == key), None)
            if found is None:
                return None
            node = found.node
        return found

    def at(self, *path: str) -> Node | None:
        """The value at the end of a path of keys; None if there is none."""
        found = self.member(*path)
        return found.node if found is not None else None

    def items_at(self, *path: str) -> tuple[Node, ...]:
        """The items of the list at the end of a path of keys; empty if there is none."""
        node = self.at(*path)
        return node.items if node is not None else ()

    def text(self, *path: str) -> str:
        """The string at the end of a path of keys; empty if there is none, or if it is unknown."""
        node = self.at(*path) if path else self
        return node.value if node is not None and node.kind is Kind.SCALAR and isinstance(node.value, str) else ""

    @property
    def in_force(self) -> tuple[Member, ...]:
        """The members; for duplicate keys the last one."""
        return tuple({member.key: member for member in self.members}.values())

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Member]]:
        """Every member in force that is not an object, with the path of its keys."""
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
        """The syntax faults of the file, each as a located note; the first twenty."""
        return [
            Note(
                NoteKind.TEMPLATE if fault.template else NoteKind.MALFORMED,
                f"{self.file.path}: {fault.message}",
                self.places.span(fault.start, fault.end),
            )
            for fault in document.faults[:_MAX_NOTES]
        ]

    def span(self, node: Node) -> Span:
        """The location of a value."""
        return self.places.span(node.start, node.end)

    def spelling(self, member: Member) -> str:
        """The pair as written (`num_machines: 2`), on one line."""
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
        """Claim that `quantity` is `value`, located at the value of `member`."""
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
    """The assignments of a file. Lines that are none are skipped: these formats have no errors that matter here."""
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
    """The tree of a configuration file, in the syntax of its suffix; YAML if the suffix is not known."""
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
