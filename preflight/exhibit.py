"""What was measured, for the eye: tables, matrices, timelines, bars, layouts that a report carries beside findings.

A pack of checks makes them with pure functions of a job, its nodes and their facts (`judgement.MakeExhibits`);
reporters draw them by kind and know no single one. No verdict stands in an exhibit: findings say what is wrong.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from preflight.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table. None: not known, and `why` says why; `odd`: it differs from what most have.

    Args:
        value: what was observed.
    """

    value: str | float | int | None
    odd: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of a table holds, and in which unit.

    Args:
        name: its heading.
        unit: of its numbers; empty where there is none.
    """

    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one subject: a node, or a rank (`rank 3 on node2`); a cell for each column.

    Args:
        subject: whom the row is about.
        cells: one for each column.
    """

    subject: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Values of subjects. The `note` of every exhibit is one sentence: what was measured, and how much of all.

    Args:
        id: stable, with dots: `versions`, `links.reach`.
        title: a few words.
        columns: in order.
        rows: in order, each with a cell for every column.
        kind: always `table`.
    """

    id: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """What came of one pair, by the numbers of its row and column; `why` where it is not simply well.

    Args:
        row, column: which pair, from 0.
        value: what was measured; null where nothing was.
        state: `ok`, `bad` or `unknown`.
    """

    row: int
    column: int
    value: float | None
    state: Literal["ok", "bad", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Pairs of rows and columns. It is sparse: a pair without a mark was not tried.

    Args:
        id: stable, with dots.
        title: a few words.
        note: what was measured, and how much of all.
        unit: of the values.
        rows, columns: whom they are about.
        marks: what came of the pairs that were tried.
        kind: always `matrix`.
    """

    id: str
    title: str
    note: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    marks: tuple[Mark, ...]
    kind: Literal["matrix"] = "matrix"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a lane, in seconds since the first span of the timeline.

    Args:
        began_s, ended_s: seconds since the first span of the timeline.
        phase: what went on.
    """

    began_s: float
    ended_s: float
    phase: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one subject did, in time order, and on which node it was.

    Args:
        subject: whose lane it is.
        node: where that is.
        spans: in time order.
    """

    subject: str
    node: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes of one clock.

    Args:
        id: stable, with dots.
        title: a few words.
        note: what was measured, and how much of all.
        lanes: one for each subject.
        kind: always `timeline`.
    """

    id: str
    title: str
    note: str
    lanes: tuple[Lane, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class Bar:
    """One number. `group` is the node it belongs to; `odd` and `why` as of a cell.

    Args:
        label: whose number it is.
        value: null where it is not known.
    """

    label: str
    group: str
    value: float | None
    odd: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Numbers of one unit, side by side.

    Args:
        id: stable, with dots.
        title: a few words.
        note: what was measured, and how much of all.
        unit: of the values.
        bars: in order.
        kind: always `bars`.
    """

    id: str
    title: str
    note: str
    unit: str
    bars: tuple[Bar, ...]
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that has its place on a node (kind `server`, `worker`, `trainer` or `rank`) and how much it holds.

    Args:
        label: what it is called.
        kind: `server`, `worker`, `trainer` or `rank`.
        value: how much it holds; null where that is not known.
        why: why it is not known.
    """

    label: str
    kind: str
    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What lies on one node.

    Args:
        node: its name.
        pieces: what lies there.
    """

    node: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Who is where, and how much of `unit` each of them holds.

    Args:
        id: stable, with dots.
        title: a few words.
        note: what was measured, and how much of all.
        places: one for each node.
        kind: always `layout`.
    """

    id: str
    title: str
    note: str
    unit: str
    places: tuple[Place, ...]
    kind: Literal["layout"] = "layout"


Exhibit: TypeAlias = Table | Matrix | Timeline | Bars | Layout
