"""What a drawing is made of. Lengths are shares of a whole (per cent) or pixels, so that templates only print."""

from __future__ import annotations

from typing import Literal, TypeAlias

from preflight.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell of a table: its text, by what it is sorted, and whether it stands out."""

    text: str
    sort: str = ""
    odd: bool = False
    missing: bool = False
    why: str = ""
    #: Colour and sign of a state: `good`, `bad`, `open`.
    state: str = ""
    #: Findings that the cell names: anchor and id.
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RowView:
    """A row; `subject` is one name or many in short form, `count` how many."""

    subject: str
    cells: tuple[CellView, ...]
    count: int = 1
    odd: bool = False


@dataclass(frozen=True, slots=True)
class ColumnView:
    """The head of a column."""

    name: str
    unit: str = ""
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class TableView:
    """A table: `rows` as shown at once, folded where many are alike; `all_rows` one by one, if those are others."""

    id: str
    title: str
    note: str
    subject: str
    columns: tuple[ColumnView, ...]
    rows: tuple[RowView, ...]
    all_rows: tuple[RowView, ...] = ()
    folded: bool = False
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Swatch:
    """An entry of a legend: `style` is the class that colours it, `sign` what stands beside the colour."""

    style: str
    label: str
    sign: str = ""


@dataclass(frozen=True, slots=True)
class SquareView:
    """A cell of a small heat map: `style` colours it, `text` is seen, `word` heard beside it, `title` tells all."""

    style: str
    text: str
    word: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A raster of one pixel a cell, once for a light page and once for a dark one, as `data:` addresses."""

    light: str
    dark: str
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Strip:
    """One bar beside a row of a large heat map: where it begins, how thick and how long it is, in per cent."""

    at: str
    thick: str
    long: str
    style: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class HeatView:
    """A heat map. Small: `squares` by row, a real table. Large: `picture` with strips, and what stands out.

    `row_names` and `column_names` are those of a picture in short form, where that keeps their order; else empty.
    """

    id: str
    title: str
    note: str
    summary: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    legend: tuple[Swatch, ...]
    squares: tuple[tuple[SquareView, ...], ...] = ()
    picture: Picture | None = None
    row_strips: tuple[Strip, ...] = ()
    column_strips: tuple[Strip, ...] = ()
    strip_note: str = ""
    row_names: str = ""
    column_names: str = ""
    standing_out: TableView | None = None
    bad: TableView | None = None
    kind: Literal["heat"] = "heat"


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A stretch of a lane, in per cent of the whole; `label` only where there is room for it."""

    at: str
    long: str
    style: str
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class LaneView:
    """What one subject did."""

    subject: str
    node: str
    phases: tuple[PhaseView, ...]
    took: CellView


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis of time."""

    at: str
    label: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Lanes of one clock. With very many, `picture` shows all of them and `lanes` those that end last."""

    id: str
    title: str
    note: str
    legend: tuple[Swatch, ...]
    ticks: tuple[Tick, ...]
    lanes: tuple[LaneView, ...]
    lanes_note: str
    by_phase: TableView
    picture: Picture | None = None
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class BarView:
    """A bar: `long` in per cent of the longest."""

    label: str
    group: str
    long: str
    value: CellView


@dataclass(frozen=True, slots=True)
class BarsView:
    """Numbers of one unit as bars; with very many, `profile` is the outline of all of them in their order."""

    id: str
    title: str
    note: str
    unit: str
    bars: tuple[BarView, ...]
    bars_note: str
    profile: str = ""
    profile_width: int = 0
    profile_note: str = ""
    has_groups: bool = False
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class PieceView:
    """Something on a node and how much of the largest share it holds."""

    label: str
    style: str
    value: str
    long: str
    missing: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlaceView:
    """A node, or several that hold the same, and what lies there."""

    node: str
    count: int
    total: str
    pieces: tuple[PieceView, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """Who is where."""

    id: str
    title: str
    note: str
    legend: tuple[Swatch, ...]
    places: tuple[PlaceView, ...]
    kind: Literal["layout"] = "layout"


Drawing: TypeAlias = TableView | HeatView | TimelineView | BarsView | LayoutView
