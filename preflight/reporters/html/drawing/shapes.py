"""View models of drawings and tables, the numbers in them and their colours."""

from __future__ import annotations

import base64
import functools
import math
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal, TypeAlias

from preflight._util.sanitize import fold_nodes
from preflight._util.sequences import grouped
from preflight.model.charts import Cell, Row, Table

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Units of time below one second: from which value on, factor, name.
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def format_number(value: float, unit: str = "") -> str:
    """Format `value` with its unit: `1.5 GiB`, `12 ms`, `98.4 Gbit/s`, `1,024`."""
    if unit in ("bytes", "B"):
        return _bytes(value)
    if unit == "s":
        return _seconds(value)
    number = digits(value)
    return f"{number} {unit}" if unit else number


def format_range(values: Sequence[float], unit: str = "") -> str:
    """Format a range: `1.2 to 1.4 s`, or one number if both ends look the same."""
    first, last = format_number(min(values), unit), format_number(max(values), unit)
    if first == last:
        return first
    number, _, own = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {own}") and own else f"{first} to {last}"


def digits(value: float) -> str:
    """Format a number with three significant digits, and a count with all its digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not a number" if value != value else ("endless" if value > 0 else "minus infinity")
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Format `part` as a percentage of `whole` with up to two decimals, enough to draw a length."""
    if not whole > 0 or part != part:
        return "0"
    return f"{max(0.0, min(100.0, 100.0 * part / whole)):.2f}".rstrip("0").rstrip(".")


def _bytes(value: float) -> str:
    size, index = abs(value), 0
    while size >= 1024 and index < len(_BINARY) - 1:
        size, index = size / 1024, index + 1
    sign = "-" if value < 0 else ""
    number = digits(size) if index else f"{size:.0f}"
    return f"{sign}{number} {_BINARY[index]}"


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for least, factor, unit in _SECONDS:
        if abs(value) >= least:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value)} s"


#: From this ratio of largest to smallest value on, levels are equal factors instead of equal steps.
_WIDE = 8.0
#: The highest level begins below this share of all values and contains everything above.
_USUAL = 0.98
#: The smallest width of a level, as a share of the median.
_MIN_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Scale:
    """The bounds between levels, lowest first; there is one more level than bounds."""

    bounds: tuple[float, ...]
    minimum: float
    maximum: float

    def level(self, value: float) -> int:
        return bisect_left(self.bounds, value)

    def style(self, value: float) -> str:
        return LEVELS[self.level(value)]

    def labels(self, unit: str) -> tuple[tuple[str, str], ...]:
        """Return class and range of every level, lowest first."""
        if not self.bounds:
            return ((LEVELS[0], format_range((self.minimum, self.maximum), unit)),)
        edges = (self.minimum, *self.bounds, self.maximum)
        return tuple((LEVELS[n], format_range((edges[n], edges[n + 1]), unit)) for n in range(len(edges) - 1))


def scale_of(values: Sequence[float]) -> Scale:
    """Return the scale of these values (at least one). Equal values give one level."""
    ordered = sorted(values)
    minimum, maximum = ordered[0], ordered[-1]
    if not maximum > minimum:
        return Scale((), minimum, maximum)
    count = len(LEVELS)
    usual = ordered[int((len(ordered) - 1) * _USUAL)]
    top = usual if usual > minimum else maximum
    if minimum > 0 and top / minimum >= _WIDE:
        step = math.log(top / minimum) / count
        return Scale(tuple(minimum * math.exp(step * n) for n in range(1, count)), minimum, maximum)
    # Values that hardly differ must not look different.
    step = max((top - minimum) / count, _MIN_STEP * abs(ordered[len(ordered) // 2]))
    bounds = (minimum + step * n for n in range(1, count))
    return Scale(tuple(bound for bound in bounds if bound < maximum), minimum, maximum)


#: Cells that were not tried are transparent.
NOTHING: Color = (0, 0, 0, 0)
#: Classes of cells: good without a value, unknown, bad, and the levels of a value.
OK, UNKNOWN, BAD = "ok", "unknown", "bad"
#: Not tried, in a row or column that is mostly bad.
BAND = "band"
LEVELS = ("level-1", "level-2", "level-3", "level-4", "level-5")
#: Phases of a timeline, in order of first appearance.
PHASES = tuple(f"phase-{number}" for number in range(1, 11))

_COLOR = re.compile(r"--([\w-]+): #([0-9a-f]{6});")

#: Red, green, blue and opacity, 0 to 255 each.
Color = tuple[int, int, int, int]


@functools.cache
def palettes() -> tuple[dict[str, Color], dict[str, Color]]:
    """Return the colours of light and of dark pages by their CSS class, as the style sheet defines them."""
    sheet = (resources.files("preflight.reporters.html") / "static" / "report.css").read_text(encoding="utf-8")
    light, rest = sheet.split("@media screen and (prefers-color-scheme: dark) {")
    first, second = (
        {name: (*bytes.fromhex(color), 255) for name, color in _COLOR.findall(text)}
        for text in (light, rest.partition("\n}")[0])
    )
    return first, {**first, **second}


@dataclass(frozen=True, slots=True)
class Picture:
    """A raster with one pixel per cell as `data:` URLs, for light and dark pages."""

    light: str
    dark: str
    columns: int
    rows: int


def picture_of(rows: Sequence[bytes], styles: Sequence[str]) -> Picture:
    """Draw these rows. A pixel is the place of its style, counted from 1; 0 is transparent."""
    light, dark = (
        base64.b64encode(png(rows, [NOTHING, *(colors[style] for style in styles)])).decode("ascii")
        for colors in palettes()
    )
    address = "data:image/png;base64,"
    return Picture(address + light, address + dark, len(rows[0]), len(rows))


def png(rows: Sequence[bytes], palette: Sequence[Color]) -> bytes:
    """Return the content of the PNG file."""
    if len(palette) > 256:
        raise ValueError("a picture has at most 256 colours")
    width = len(rows[0]) if rows else 0
    head = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    raw = b"".join(b"\x00" + row for row in rows)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", head),
            _chunk(b"PLTE", b"".join(bytes(color[:3]) for color in palette)),
            _chunk(b"tRNS", bytes(color[3] for color in palette)),
            _chunk(b"IDAT", zlib.compress(raw, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


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
    numeric: bool = False


@dataclass(frozen=True, slots=True)
class TableView:
    """A table. `rows` are shown at once, folded if many are alike; `all_rows` are the unfolded ones if different."""

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
    """An entry of a legend: `style` is its CSS class, `symbol` stands for it without colour."""

    style: str
    label: str
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class SquareView:
    """A cell of a small heat map: `style` colours it, `text` is visible, `word` is for screen readers."""

    style: str
    text: str
    word: str = ""
    title: str = ""


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

    `row_names` and `column_names` are the names of a picture in folded form if that keeps their order; otherwise they
    are empty.
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
    """A phase of a lane, as a percentage of the whole; `label` is empty if it does not fit."""

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
    """Lanes on a common clock. With very many, `picture` shows all, and `lanes` those that ended last."""

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
    """A bar; `long` is its length as a percentage of the longest bar."""

    label: str
    group: str
    long: str
    value: CellView


@dataclass(frozen=True, slots=True)
class BarsView:
    """A bar chart; if there are very many bars, `profile` is the outline of all bars in their order."""

    id: str
    title: str
    note: str
    bars: tuple[BarView, ...]
    bars_note: str
    profile: str = ""
    profile_width: int = 0
    profile_note: str = ""
    has_groups: bool = False
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True, slots=True)
class PieceView:
    """One bar for a part of a node's memory (or other resource), scaled to the largest one."""

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


#: Up to this many rows, each has a line of its own.
_ROWS_UNFOLDED = 16
#: Words for the subjects of a table, by the prefix of its rows.
_RANK = "rank "


def table_view(table: Table) -> TableView:
    numeric = tuple(_is_numeric(table.rows, index) for index in range(len(table.columns)))
    columns = tuple(ColumnView(column.name, number) for column, number in zip(table.columns, numeric, strict=True))
    units = tuple(column.unit for column in table.columns)
    single = tuple(RowView(row.subject, _cells(row, units), odd=_is_odd(row)) for row in table.rows)
    rows = single if len(single) <= _ROWS_UNFOLDED else _fold_rows(table.rows, numeric, units)
    rows = tuple(sorted(rows, key=lambda row: not row.odd))
    folded = len(rows) < len(single)
    subject = "rank" if table.rows and all(row.subject.startswith(_RANK) for row in table.rows) else "node"
    return TableView(
        table.id, table.title, table.note, subject, columns, rows, all_rows=single if folded else (), folded=folded
    )


def cell_view(value: str | float | int | None, unit: str = "", *, odd: bool = False, why: str = "") -> CellView:
    """Build one cell with its sort key."""
    if value is None or not is_known(value):
        return CellView("not known", missing=True, odd=odd, why=why)
    if isinstance(value, str):
        return CellView(value, odd=odd, why=why)
    return CellView(format_number(value, unit), sort=repr(float(value)), odd=odd, why=why)


def is_known(value: object) -> bool:
    """Return whether the value can be shown, which is not the case if it is absent or NaN."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _is_numeric(rows: Sequence[Row], index: int) -> bool:
    values = [row.cells[index].value for row in rows if index < len(row.cells) and is_known(row.cells[index].value)]
    return bool(values) and not any(isinstance(value, str) for value in values)


def _is_odd(row: Row) -> bool:
    return any(cell.odd for cell in row.cells)


def _cells(row: Row, units: Sequence[str]) -> tuple[CellView, ...]:
    return tuple(
        cell_view(cell.value, unit, odd=cell.odd, why=cell.why) for cell, unit in zip(row.cells, units, strict=False)
    )


def _fold_rows(rows: Sequence[Row], numeric: Sequence[bool], units: Sequence[str]) -> tuple[RowView, ...]:
    """Fold rows that differ only in their numbers into one, with the range of each number."""
    groups = grouped((_key(row, numeric), row) for row in rows)
    return tuple(_row_view(same, units) for same in groups.values())


def _key(row: Row, numeric: Sequence[bool]) -> tuple[object, ...]:
    return tuple(
        (cell.odd, cell.why, is_known(cell.value)) if is_number else (cell.odd, cell.why, cell.value)
        for cell, is_number in zip(row.cells, numeric, strict=False)
    )


def _row_view(rows: Sequence[Row], units: Sequence[str]) -> RowView:
    first = rows[0]
    if len(rows) == 1:
        return RowView(first.subject, _cells(first, units), odd=_is_odd(first))
    cells = tuple(
        _range([row.cells[index] for row in rows], unit)
        for index, unit in zip(range(len(first.cells)), units, strict=False)
    )
    return RowView(fold_nodes([row.subject for row in rows]), cells, count=len(rows), odd=_is_odd(first))


def _range(cells: Sequence[Cell], unit: str) -> CellView:
    values = [cell.value for cell in cells if isinstance(cell.value, (int, float)) and is_known(cell.value)]
    first = cells[0]
    if not values or isinstance(first.value, str):
        return cell_view(first.value, unit, odd=first.odd, why=first.why)
    middle = sorted(values)[len(values) // 2]
    return CellView(format_range(values, unit), sort=repr(float(middle)), odd=first.odd, why=first.why)
