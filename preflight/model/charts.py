"""Measurements as charts: tables, matrices, timelines, bars and layouts that a report carries beside findings.

A pack of checks builds them with pure functions of a job, its nodes and their facts (`authoring.MakeCharts`); reporters
draw them by kind and treat all charts of a kind alike. A chart holds no verdict: findings report faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

#: For pydantic: a plugin may build a chart from anything, so instances are validated too, and numbers are finite.
_CHECKED: Any = {"revalidate_instances": "always", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table. None means unknown, with the reason in `why`; `odd`: whether it differs from most others.

    Args:
        value: the observed value.
    """

    value: str | float | int | None
    odd: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """The content of a table column, and its unit.

    Args:
        name: its heading.
        unit: of its numbers; empty if they have none.
    """

    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one subject: a node, or a rank (`rank 3 on node2`); one cell for each column.

    Args:
        subject: the node or rank.
        cells: one for each column.
    """

    subject: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Chart:
    __pydantic_config__: ClassVar[Any] = _CHECKED

    id: str
    title: str
    note: str


@dataclass(frozen=True, slots=True)
class Table(_Chart):
    """Values by subject. The `note` of every chart is one sentence: the measured quantity, and the number of subjects.

    Args:
        id: stable, with dots: `versions`, `links.reach`.
        title: a few words.
        columns: in order.
        rows: in order, each with a cell for every column.
        kind: always `table`.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """The result for one pair, by row and column number; `why` explains a result other than good.

    Args:
        row, column: the pair, counted from 0.
        value: the measured value; null without one.
        state: `ok`, `bad` or `unknown`.
    """

    row: int
    column: int
    value: float | None
    state: Literal["ok", "bad", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Matrix(_Chart):
    """Pairs of rows and columns. It is sparse: a pair without a mark was not tried.

    Args:
        id: stable, with dots.
        title: a few words.
        note: the measured quantity, and the number of subjects.
        unit: of the values.
        rows, columns: the subjects.
        marks: the results of the pairs that were tried.
        kind: always `matrix`.
    """

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
        phase: the name of the phase.
    """

    began_s: float
    ended_s: float
    phase: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The phases of one subject in time order, and its node.

    Args:
        subject: the rank or process.
        node: its node.
        spans: in time order.
    """

    subject: str
    node: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline(_Chart):
    """Lanes on a common clock.

    Args:
        id: stable, with dots.
        title: a few words.
        note: the measured quantity, and the number of subjects.
        lanes: one for each subject.
        kind: always `timeline`.
    """

    lanes: tuple[Lane, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class Bar:
    """One number. `group` is the node it belongs to; `odd` and `why` are as in a cell.

    Args:
        label: the owner of the number.
        value: null if unknown.
    """

    label: str
    group: str
    value: float | None
    odd: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Bars(_Chart):
    """Numbers of one unit, side by side.

    Args:
        id: stable, with dots.
        title: a few words.
        note: the measured quantity, and the number of subjects.
        unit: of the values.
        bars: in order.
        kind: always `bars`.
    """

    unit: str
    bars: tuple[Bar, ...]
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class Piece:
    """Something placed on a node (kind `server`, `worker`, `trainer` or `rank`) and the amount it holds.

    Args:
        label: its name.
        kind: `server`, `worker`, `trainer` or `rank`.
        value: the amount it holds; null if unknown.
        why: the reason if it is unknown.
    """

    label: str
    kind: str
    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The contents of one node.

    Args:
        node: its name.
        pieces: the processes on it.
    """

    node: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Layout(_Chart):
    """Which process runs on which node, and how much of `unit` each of them holds.

    Args:
        id: stable, with dots.
        title: a few words.
        note: the measured quantity, and the number of subjects.
        places: one for each node.
        kind: always `layout`.
    """

    unit: str
    places: tuple[Place, ...]
    kind: Literal["layout"] = "layout"


Chart: TypeAlias = Table | Matrix | Timeline | Bars | Layout
