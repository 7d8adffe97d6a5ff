"""Charts as geometry and text: equal rows are folded, a bad row is visible, and an unknown value never looks like a
number.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import replace

import pytest

from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
    Column,
    Lane,
    Layout,
    Mark,
    Matrix,
    Piece,
    Place,
    Row,
    Span,
    Table,
    Timeline,
)
from preflight.reporters.html.drawing.draw import bars_view, drawings_of, heat_view, layout_view, timeline_view
from preflight.reporters.html.drawing.shapes import (
    BAD,
    BAND,
    DARK,
    LEVELS,
    LIGHT,
    Picture,
    format_number,
    format_range,
    scale_of,
    share,
    table_view,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1536, "bytes", "1.50 KiB"),
        (3 * 2**40, "bytes", "3.00 TiB"),
        (0.0000193, "s", "19.3 µs"),
        (0.5, "s", "500 ms"),
        (61.25, "s", "61.2 s"),
        (97.18, "Gbit/s", "97.2 Gbit/s"),
        (12345, "", "12,345"),
        (0.00123, "", "0.00123"),
        (float("nan"), "", "not a number"),
    ],
)
def test_numbers_have_few_digits_and_a_fitting_unit(value: float, unit: str, text: str) -> None:
    assert format_number(value, unit) == text


def test_a_range_has_its_unit_once_and_equal_ends_are_one_number() -> None:
    assert format_range([1.2, 1.4], "s") == "1.20 to 1.40 s"
    assert format_range([0.0004, 1.4], "s") == "400 µs to 1.40 s"
    assert format_range([2.0, 2.0], "s") == "2.00 s"
    assert share(1, 0) == "0"


def rows_of(count: int, **odd: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"n{number:03d}",
            (Cell(odd.get(f"n{number:03d}", "2.5.1"), odd=f"n{number:03d}" in odd), Cell(number / 1000)),
        )
        for number in range(count)
    )


def a_table(rows: tuple[Row, ...]) -> Table:
    return Table("versions", "Versions", "", (Column("torch"), Column("took", "s")), rows)


def test_a_short_table_has_a_row_per_subject_odd_ones_first() -> None:
    view = table_view(a_table(rows_of(4, n002="2.1.0")))
    assert [row.subject for row in view.rows] == ["n002", "n000", "n001", "n003"]
    assert not view.folded
    assert view.columns[1].numeric and view.columns[1].unit == "s"


def test_equal_rows_are_folded_with_ranges_of_numbers() -> None:
    view = table_view(a_table(rows_of(300, n200="2.1.0")))
    assert [(row.subject, row.count) for row in view.rows] == [("n200", 1), ("n[000-199,201-299]", 299)]
    assert view.rows[1].cells[1].text == "0 s to 299 ms"
    assert len(view.all_rows) == 300


def test_unknown_values_show_their_reason_and_are_not_folded_with_known_ones() -> None:
    rows = (*rows_of(20), Row("n900", (Cell(None, why="denied"), Cell(float("nan")))))
    view = table_view(a_table(rows))
    assert [(row.subject, row.cells[0].text, row.cells[0].why) for row in view.rows][1] == (
        "n900",
        "not known",
        "denied",
    )
    assert view.rows[1].cells[1].missing


def test_an_outlier_does_not_flatten_the_scale() -> None:
    scale = scale_of([*(float(value) for value in range(100)), 1e6])
    assert len({scale.level(float(value)) for value in range(100)}) == len(LEVELS)
    assert scale.style(1e6) == LEVELS[-1]
    assert scale_of([3.0, 3.0]).labels("s") == ((LEVELS[0], "3.00 s"),)


def test_nearly_equal_values_look_equal() -> None:
    assert scale_of([19.7, 20.0, 20.3, 20.7]).labels("µs") == ((LEVELS[0], "19.7 to 20.7 µs"),)
    assert len(scale_of([10.0, 12.0, 20.0]).labels("µs")) == len(LEVELS)


# --- heat maps ---


def a_matrix(count: int, bad_row: int = -1, *, value: float | None = None, step: int = 1) -> Matrix:
    names = tuple(f"n{number:04d}" for number in range(count))
    marks = tuple(
        Mark(row, column, value, "bad" if row == bad_row else "ok", "refused" if row == bad_row else "")
        for row in range(count)
        for column in range(count)
        if row != column and (row - column) % step == 0
    )
    return Matrix("links.reach", "Reachability", "", "us" if value else "", names, names, marks)


def pixels(picture: Picture, address: str) -> list[bytes]:
    """The rows of a picture, as numbers of its palette, read back from the file."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        size = struct.unpack(">II", body[:8]) if kind == b"IHDR" else size
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    assert size == (picture.columns, picture.rows)
    raw = zlib.decompress(packed)
    width = picture.columns + 1
    return [raw[start + 1 : start + width] for start in range(0, len(raw), width)]


def test_a_small_matrix_describes_each_pair_in_words() -> None:
    view = heat_view(a_matrix(4, bad_row=2))
    assert [square.text for square in view.squares[2]] == ["×", "×", "·", "×"]
    assert [square.word for square in view.squares[2]] == ["bad", "bad", "itself", "bad"]
    assert view.squares[2][0].title == "n0002 to n0000: bad (refused)"
    assert view.summary == "12 pairs drawn: 9 ok, 3 bad"
    assert "not tried" not in [swatch.label for swatch in view.legend]
    assert view.picture is None


def test_a_cell_shows_its_value() -> None:
    view = heat_view(a_matrix(3, value=21.0))
    assert view.squares[0][1].text == "21.0"
    assert view.squares[0][1].title == "n0000 to n0001: 21.0 us"
    assert view.summary == "6 pairs drawn: 6 ok. Median 21.0 us, 21.0 us"


def test_an_untried_pair_is_not_a_pass() -> None:
    view = heat_view(a_matrix(6, step=2))
    assert view.squares[0][1].word == "not tried"
    assert "not tried" in [swatch.label for swatch in view.legend]


def test_a_bad_row_of_a_large_matrix_spans_the_picture() -> None:
    view = heat_view(a_matrix(1000, bad_row=402, step=40))
    assert view.picture is not None
    assert (view.picture.columns, view.picture.rows) == (250, 250)
    for address in (view.picture.light, view.picture.dark):
        lines = pixels(view.picture, address)
        assert 0 not in lines[402 // 4], "also where no pair of it was tried"
        assert 0 in lines[403 // 4 + 1]
    (longest,) = [strip for strip in view.row_strips if strip.long == "100"]
    assert longest.title == "n0402: 100 % of its pairs bad"
    assert view.outliers is not None and view.bad is not None
    assert [row.subject for row in view.outliers.rows] == ["n0402", "999 others"]
    assert view.outliers.rows[0].cells[0].text == "24 of 24"
    assert view.bad.rows[0].cells[3].text == "refused"


def test_a_large_matrix_without_faults_names_its_extremes() -> None:
    names = tuple(f"n{number}" for number in range(60))
    marks = tuple(Mark(row, (row + 1) % 60, float(row + 1), "ok") for row in range(60))
    view = heat_view(Matrix("links.latency", "Latency", "", "us", names, names, marks))
    assert view.outliers is not None
    assert "n59" in [row.subject for row in view.outliers.rows]
    assert view.outliers.rows[-1].subject == "54 others"
    assert view.bad is None


def test_nothing_stands_out_without_faults_and_values() -> None:
    view = heat_view(a_matrix(60, step=2))
    assert view.outliers is None
    assert view.row_strips == () and view.strip_note == ""


def test_folded_names_are_shown_only_if_they_keep_the_order() -> None:
    assert heat_view(a_matrix(30)).row_names == "n[0000-0029]"
    turned = replace(a_matrix(30), rows=a_matrix(30).rows[::-1])
    assert heat_view(turned).row_names == ""
    assert heat_view(replace(turned, rows=tuple(f"rank {n}" for n in range(30)))).row_names == ""


def test_the_picture_of_a_thousand_nodes_is_small() -> None:
    view = heat_view(a_matrix(1000, value=20.0, step=21))
    assert view.picture is not None
    assert len(view.picture.light) < 100_000


def test_both_palettes_have_a_colour_for_every_class() -> None:
    assert set(LIGHT) == set(DARK) >= {BAD, BAND, *LEVELS}


# --- timelines, bars, layouts ---


def lanes(count: int) -> Timeline:
    made = tuple(
        Lane(f"rank {n}", f"node{n}", (Span(0, 1, "start"), Span(1, 3 + (n == 7), "train"))) for n in range(count)
    )
    return Timeline("smoke.steps", "Steps", "", made)


def test_a_timeline_has_phase_durations_and_the_slowest_lane() -> None:
    view = timeline_view(lanes(10))
    assert [(row.subject, row.cells[1].text, row.cells[2].text, row.cells[3].text) for row in view.by_phase.rows] == [
        ("start", "1.00 s", "1.00 s", "rank 0"),
        ("train", "2.00 s", "2.00 to 3.00 s", "rank 7"),
    ]
    assert view.lanes[7].took.text == "4.00 s"
    assert (view.lanes[0].phases[1].at, view.lanes[0].phases[1].long) == ("25", "50")
    assert view.picture is None


def test_many_lanes_become_a_picture_with_the_last_ones_as_rows() -> None:
    view = timeline_view(lanes(1000))
    assert view.picture is not None and view.picture.rows == 1000
    assert view.lanes[0].subject == "rank 7"
    assert len(view.lanes) == 12
    ends = [bytes(row).rstrip(b"\0") for row in pixels(view.picture, view.picture.light)]
    assert [number for number, end in enumerate(ends) if len(end) == 960] == [7]


def test_an_empty_lane_is_marked() -> None:
    view = timeline_view(Timeline("smoke.steps", "Steps", "", (Lane("rank 0", "n", ()),)))
    assert view.lanes[0].took.missing and view.ticks == ()


def test_many_bars_list_odd_ones_and_extremes() -> None:
    many = tuple(Bar(f"rank {n}", f"node{n}", 1 + n / 1000, odd=n == 500) for n in range(900))
    view = bars_view(Bars("smoke.stragglers", "Stragglers", "", "s", (*many, Bar("rank 900", "x", None, why="silent"))))
    listed = [bar.label for bar in view.bars]
    assert {"rank 0", "rank 500", "rank 899", "rank 900"} <= set(listed)
    assert len(listed) == 14
    assert view.bars_note.endswith("887 others are between: 1.01 to 1.89 s.")
    assert view.bars[-1].value.text == "not known" and view.bars[-1].long == "0"
    assert view.profile.count("h1") == 901


def test_a_layout_folds_nodes_with_the_same_kinds_of_pieces() -> None:
    places = tuple(
        Place(f"n{n:03d}", (Piece(f"server {n}", "server", n * 2.0**20), Piece(f"worker {n}", "worker", None)))
        for n in range(1, 41)
    )
    view = layout_view(Layout("servers.placement", "Who is where", "", "bytes", places))
    (place,) = view.places
    assert (place.node, place.count, place.total) == ("n[001-040]", 40, "1.00 to 40.0 MiB")
    assert place.pieces[0].label == "server 1 to server 40"
    assert place.pieces[0].long == "100"
    assert place.pieces[1].value == "", "a worker holds nothing, which is no gap"


def test_a_server_with_unknown_content_is_named() -> None:
    layout = Layout("servers.placement", "", "", "bytes", (Place("n", (Piece("server 0", "server", None, "silent"),)),))
    (piece,) = layout_view(layout).places[0].pieces
    assert (piece.value, piece.missing, piece.why) == ("not known", True, "silent")


def test_headings_come_from_ids_and_empty_charts_are_left_out() -> None:
    own = Table("site.licences", "Licences", "", (Column("free"),), (Row("n1", (Cell(3),)),))
    empty = Timeline("smoke.steps", "Steps", "", ())
    found = drawings_of([own, empty, a_matrix(3)])
    assert [(heading, len(drawings)) for heading, drawings in found] == [("Links", 1), ("Measurements", 1)]
