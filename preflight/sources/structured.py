"""Configuration as a tree whose every value keeps its place, whichever syntax it was written in.

The readers of JSON and YAML make these; the sources of DeepSpeed, Accelerate, Kubernetes and so on walk them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import field

from preflight.job import (
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
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import SourceFile

#: Characters of a spelling; a longer one is cut.
_LONGEST_SPELLING = 120
#: More faults of one file tell a reader nothing new.
_MOST_NOTES = 20


class Kind(enum.Enum):
    """What stands at a place."""

    OBJECT = "object"
    ARRAY = "array"
    SCALAR = "scalar"
    #: Something fills this in before anybody reads it: `{{ .Values.gpus }}`, `${BATCH}`, `@NODES@`.
    TEMPLATE = "template"
    #: No value of this syntax.
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Node:
    """One value; `text[start:end]` is how it is written, `value` what a scalar is.

    Of a template `value` is the text as written. Equal keys of an object are all kept; the last is in force.
    """

    kind: Kind
    start: int
    end: int
    value: Plain = None
    members: tuple[Member, ...] = ()
    items: tuple[Node, ...] = ()

    def member(self, *path: str) -> Member | None:
        """The member in force at the end of a path of keys; None where there is none."""
        found: Member | None = None
        node = self
        for key in path:
            found = next((member for member in reversed(node.members) if member.key == key), None)
            if found is None:
                return None
            node = found.node
        return found

    def at(self, *path: str) -> Node | None:
        """The value at the end of a path of keys; None where there is none."""
        found = self.member(*path)
        return found.node if found is not None else None

    def text(self, *path: str) -> str:
        """The text at the end of a path of keys; empty where there is none, or none that is known."""
        node = self.at(*path) if path else self
        return node.value if node is not None and node.kind is Kind.SCALAR and isinstance(node.value, str) else ""

    @property
    def in_force(self) -> tuple[Member, ...]:
        """The members, of equal keys the last."""
        return tuple({member.key: member for member in self.members}.values())

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Member]]:
        """Every member in force that holds no object, with the path of keys that leads to it."""
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
    """A place that does not follow the syntax. `hjson`: DeepSpeed's own reader (Hjson) accepts it all the same."""

    message: str
    start: int
    end: int
    hjson: bool = False
    template: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """What could be read, and what could not."""

    root: Node | None
    faults: tuple[Fault, ...]


def document_of(file: SourceFile) -> Document:
    """A file of configuration as a tree, in the syntax that its suffix names; YAML where it names none."""
    if file.path.lower().endswith((".json", ".jsonc", ".hjson")):
        from preflight.sources import lenient_json

        return lenient_json.parse(file.text)
    from preflight.sources import lenient_yaml

    return lenient_yaml.parse(file.text)


def value_of(node: Node) -> Value:
    """What a value is as a claim: a template is unresolved, a list of known scalars a tuple."""
    if node.kind is Kind.SCALAR:
        return Known(node.value)
    if node.kind is Kind.TEMPLATE:
        return Unresolved(f"{str(node.value)[:60]}: a placeholder that something fills in later")
    if node.kind is Kind.ARRAY and all(item.kind is Kind.SCALAR for item in node.items):
        return Known(tuple(item.value for item in node.items))  # type: ignore[misc]
    return Unresolved(f"a {node.kind.value} stands where one value was expected")


@dataclass(slots=True)
class NodeStating:
    """Collects the claims of one configuration file: source, scope and strength once, then one call a claim."""

    file: SourceFile
    source: str
    scope: Scope = WHOLE_JOB
    strength: Strength = Strength.CONFIG
    claims: list[Claim] = field(default_factory=list)
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.file.path, self.file.text)

    def notes(self, document: Document) -> list[Note]:
        """What the file's syntax is wrong in, each fault as a located note; the first twenty."""
        return [
            Note(
                NoteKind.TEMPLATE if fault.template else NoteKind.MALFORMED,
                f"{self.file.path}: {fault.message}",
                self.places.span(fault.start, fault.end),
            )
            for fault in document.faults[:_MOST_NOTES]
        ]

    def span(self, node: Node) -> Span:
        """Where a value stands."""
        return self.places.span(node.start, node.end)

    def spelling(self, member: Member) -> str:
        """The pair as written (`num_machines: 2`), on one line."""
        return " ".join(self.file.text[member.key_start : member.node.end].split())[:_LONGEST_SPELLING]

    def say(
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
        """Claim that `quantity` is `value`, at the value of `member`."""
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
        )
        self.claims.append(claim)
        return claim

    def given(
        self,
        quantity: str,
        member: Member | None,
        convert: Callable[[Value], Value] = lambda value: value,
        *,
        relation: Relation = Relation.SETS,
        scope: Scope | None = None,
    ) -> Claim | None:
        """Claim what a member says; nothing where there is no such member, or it is null."""
        if member is None or (member.node.kind is Kind.SCALAR and member.node.value is None):
            return None
        return self.say(quantity, convert(value_of(member.node)), member, relation=relation, scope=scope)
