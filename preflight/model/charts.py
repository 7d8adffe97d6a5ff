"""Measurements as charts: tables, matrices, timelines, bars and layouts that a report carries beside findings.

A pack of checks builds them with pure functions of a job, its nodes and their facts (`authoring.MakeCharts`); reporters
draw them by kind and treat all charts of a kind alike. A chart holds no verdict: findings report faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

#: For pydantic: a plugin may build a chart from anything, so instances are validated too, and numbers are finite.
_PYDANTIC_CONFIG: Any = {"revalidate_instances": "always", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table.

    Args:
        value: the observed value; null if it is unknown.
        odd: whether the value differs from most other values of the column.
        why: the reason if the value is unknown.
    """

    value: str | float | int | None
    odd: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """The heading and the unit of a table column.

    Args:
        name: the heading.
        unit: the unit of the numbers; empty if they have no unit.
    """

    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one subject.

    Args:
        subject: a node, or a rank (`rank 3 on node2`).
        cells: one cell for each column.
    """

    subject: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Chart:
    __pydantic_config__: ClassVar[Any] = _PYDANTIC_CONFIG

    id: str
    title: str
    note: str


@dataclass(frozen=True, slots=True)
class Table(_Chart):
    """Values by subject.

    Args:
        id: a stable identifier with dots: `versions`, `links.reach`.
        title: a few words.
        note: one sentence with the measured quantity and the number of subjects.
        columns: the columns in order.
        rows: the rows in order, each with a cell for every column.
        kind: always `table`.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Mark:
    """The result for one pair of a row and a column.

    Args:
        row, column: the numbers of the row and the column, counted from 0.
        value: the measured value; null if nothing was measured.
        state: `ok`, `bad` or `unknown`.
        why: the reason if the state is not `ok`.
    """

    row: int
    column: int
    value: float | None
    state: Literal["ok", "bad", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Matrix(_Chart):
    """Results for pairs of subjects. A pair without a mark was not tried.

    Args:
        id: a stable identifier with dots.
        title: a few words.
        note: one sentence with the measured quantity and the number of subjects.
        unit: the unit of the values.
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
    """A phase of a lane.

    Args:
        began_s, ended_s: the start and the end, in seconds since the first span of the timeline.
        phase: the name of the phase.
    """

    began_s: float
    ended_s: float
    phase: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The phases of one subject.

    Args:
        subject: the rank or process.
        node: the node of the subject.
        spans: the phases in time order.
    """

    subject: str
    node: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline(_Chart):
    """Lanes on a common clock.

    Args:
        id: a stable identifier with dots.
        title: a few words.
        note: one sentence with the measured quantity and the number of subjects.
        lanes: one lane for each subject.
        kind: always `timeline`.
    """

    lanes: tuple[Lane, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class Bar:
    """One number of a bar chart.

    Args:
        label: the owner of the number.
        group: the node of the owner.
        value: the number; null if it is unknown.
        odd: whether the number differs from most others.
        why: the reason if the number is unknown.
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
        id: a stable identifier with dots.
        title: a few words.
        note: one sentence with the measured quantity and the number of subjects.
        unit: the unit of the values.
        bars: the numbers in order.
        kind: always `bars`.
    """

    unit: str
    bars: tuple[Bar, ...]
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class Piece:
    """A process on a node, and the amount that it holds.

    Args:
        label: the name of the process.
        kind: `server`, `worker`, `trainer` or `rank`.
        value: the amount that the process holds; null if it is unknown.
        why: the reason if the amount is unknown.
    """

    label: str
    kind: str
    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The processes of one node.

    Args:
        node: the name of the node.
        pieces: the processes on the node.
    """

    node: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Layout(_Chart):
    """The processes of every node, and the amount that each process holds.

    Args:
        id: a stable identifier with dots.
        title: a few words.
        note: one sentence with the measured quantity and the number of subjects.
        unit: the unit of the amounts.
        places: one entry for each node.
        kind: always `layout`.
    """

    unit: str
    places: tuple[Place, ...]
    kind: Literal["layout"] = "layout"


Chart: TypeAlias = Table | Matrix | Timeline | Bars | Layout
