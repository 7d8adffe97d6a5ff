"""View models of drawings. Lengths are percentages of a whole or pixels, so that templates only print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell of a table: its text, its sort key, and whether it stands out."""

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
    """A row; `subject` is one name or several in folded form, `count` their number."""

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
    """A table: `rows` are shown at once, folded if many are alike; `all_rows` are the unfolded rows, if different."""

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
    """An entry of a legend: `style` is its CSS class, `sign` stands for it without colour."""

    style: str
    label: str
    sign: str = ""


@dataclass(frozen=True, slots=True)
class SquareView:
    """A cell of a small heat map: `style` colours it, `text` is visible, `word` is for screen readers, `title` has the
    details.
    """

    style: str
    text: str
    word: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A raster with one pixel per cell as `data:` URLs, for light and dark pages."""

    light: str
    dark: str
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Strip:
    """A bar beside a row of a large heat map: its position, thickness and length as percentages."""

    at: str
    thick: str
    long: str
    style: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class HeatView:
    """A heat map. Small: `squares` by row. Large: a `picture` with strips, and what stands out.

    `row_names` and `column_names` are the names of a picture in folded form if that keeps their order; else empty.
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
    outliers: TableView | None = None
    bad: TableView | None = None
    kind: Literal["heat"] = "heat"


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase of a lane, as a percentage of the whole; `label` only if there is room for it."""

    at: str
    long: str
    style: str
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class LaneView:
    """The phases of one subject."""

    subject: str
    node: str
    phases: tuple[PhaseView, ...]
    took: CellView


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the time axis."""

    at: str
    label: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Lanes on a common clock. With very many, `picture` shows all of them and `lanes` those that ended last."""

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
    """A bar: `long` as a percentage of the longest."""

    label: str
    group: str
    long: str
    value: CellView


@dataclass(frozen=True, slots=True)
class BarsView:
    """A bar chart; with very many bars, `profile` is the outline of all of them in their order."""

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
    """Something on a node, and its share of the largest piece."""

    label: str
    style: str
    value: str
    long: str
    missing: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlaceView:
    """A node, or several with the same content, and its pieces."""

    node: str
    count: int
    total: str
    pieces: tuple[PieceView, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """The places of a layout."""

    id: str
    title: str
    note: str
    legend: tuple[Swatch, ...]
    places: tuple[PlaceView, ...]
    kind: Literal["layout"] = "layout"


Drawing: TypeAlias = TableView | HeatView | TimelineView | BarsView | LayoutView
