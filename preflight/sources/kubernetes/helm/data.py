"""The data of templates, in which strings and entries keep their locations.

Data is None, bool, int, float, a string, a `Table` or a `Series`. A `Gap` is a value that the files do not determine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from preflight.sources.formats.located_text import Origin, Piece
from preflight.sources.formats.structured import Kind, Node
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
        """The string made of these pieces."""
        kept = tuple(piece for piece in pieces if piece.text)
        made = cls("".join(piece.text for piece in kept))
        made.pieces = kept
        return made

    def cut(self, start: int, end: int) -> Written:
        """Characters `start` to `end`."""
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
    """A copy of the data, which can be changed independently."""
    if isinstance(data, Table):
        return Table({key: copy_data(value) for key, value in data.items()}, data.places)
    if isinstance(data, Series):
        return Series([copy_data(item) for item in data], data.places)
    return data
