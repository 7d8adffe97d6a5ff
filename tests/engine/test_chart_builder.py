"""Charts of packs: they reach the report and its JSON, and a broken one does not affect the others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from preflight import api
from preflight.engine.report import Report, adapter, report_on, to_json
from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
    Chart,
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
from preflight.model.findings import VerdictKind
from preflight.model.recording import Recording
from preflight.model.recording_io import load, save
from preflight.plugins import registry
from preflight.plugins.authoring import MakeCharts
from preflight.plugins.pack import Pack
from preflight.plugins.registry import ChartMaker
from tests.builders import assert_follows_schema, job, make_recording, reached

TABLE = Table(
    "site.racks",
    "Racks",
    "Which rack each of 2 nodes is in.",
    (Column("rack"), Column("power", "W")),
    (Row("a", (Cell("r1"), Cell(350))), Row("b", (Cell("r2", odd=True), Cell(None, why="no meter")))),
)
ALL: tuple[Chart, ...] = (
    TABLE,
    Matrix("site.m", "m", "-", "ms", ("a", "b"), ("a", "b"), (Mark(0, 1, 0.25, "ok"), Mark(1, 0, None, "bad", "-"))),
    Timeline("site.t", "t", "-", (Lane("rank 0", "a", (Span(0.0, 1.5, "join"),)),)),
    Bars("site.b", "b", "-", "ms", (Bar("rank 0", "a", 1.0), Bar("rank 1", "b", None, why="-"))),
    Layout("site.l", "l", "-", "bytes", (Place("a", (Piece("server 0", "server", 12.0),)),)),
)


def chart_maker(make: MakeCharts, where: str = "site:racks") -> ChartMaker:
    """`make` as a plugin's pack names it."""
    return ChartMaker("site 1.0", where, make)


def always(*made: Any) -> ChartMaker:
    """A function that makes the same chart for every job."""
    return chart_maker(lambda job, fleet, facts: made)


def looked_at(*jobs: str) -> Recording:
    """The recording of a check of two nodes without requests."""
    named = [job(name=name) for name in jobs or ("run.sh",)]
    return make_recording(*named, verb="check", nodes=reached("a", "b"), stages=("node",))


def build_charts(*chart_makers: ChartMaker, recording: Recording | None = None) -> Report:
    """The report with these charts, validated against the schema."""
    report = report_on(recording or looked_at(), (), (), chart_makers=chart_makers)
    assert_follows_schema(to_json(report))
    return report


def test_every_kind_of_chart_is_in_the_report_and_follows_the_schema() -> None:
    report = build_charts(always(*ALL))
    assert report.charts == ALL
    written = json.loads(to_json(report))
    assert written == json.loads(adapter().dump_json(report))
    assert [one["kind"] for one in written["charts"]] == ["table", "matrix", "timeline", "bars", "layout"]
    assert adapter().validate_json(to_json(report)).charts == ALL


def crashes(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    yield TABLE
    raise RuntimeError("no rack database")


def leaves(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (chart_maker(crashes), "RuntimeError: no rack database"),
        (chart_maker(leaves), "SystemExit: 3"),
        (always("a picture"), "str is not a chart; expected one of Table"),
        (always(replace(TABLE, rows=("a",))), "the chart 'site.racks' is invalid"),
        (always(Bars("x", "x", "-", "ms", (Bar("r", "a", math.nan),))), "the chart 'x' is invalid"),
        (always(ALL[1]), "the id 'site.m' is already used"),
    ],
    ids=["raises", "exits", "text", "shape", "nan", "taken"],
)
def test_a_broken_chart_is_named_and_others_are_kept(bad: ChartMaker, why: str) -> None:
    fine = build_charts(always(*ALL[1:]))
    report = build_charts(always(*ALL[1:]), bad)
    (broken,) = report.coverage.broken
    assert (broken.plugin, broken.where) == ("site 1.0", "site:racks")
    assert why in broken.why
    assert report.charts == ALL[1:]
    assert (report.verdict, report.exit_code) == (fine.verdict, fine.exit_code), "a chart is no part of the verdict"


def test_shared_charts_appear_once_and_different_ones_are_numbered() -> None:
    def sized(job: object, fleet: object, facts: object) -> Iterable[Chart]:
        yield TABLE
        yield Bars("site.b", "Names", "-", "letters", (Bar("job", "", float(len(job.name))),))  # type: ignore[attr-defined]

    report = build_charts(chart_maker(sized), recording=looked_at("b.sh", "a.sh", "long.sh"))
    assert [(one.id, one.title) for one in report.charts] == [
        ("site.racks", "Racks"),
        ("site.b", "Names (a.sh)"),
        ("site.b.2", "Names (long.sh)"),
    ]


def test_a_list_is_accepted_as_a_tuple() -> None:
    assert build_charts(always(replace(TABLE, rows=list(TABLE.rows)))).charts == (TABLE,)


def test_a_pack_names_them_beside_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    import preflight_checks

    names = (
        "tests.engine.test_chart_builder:racks",
        "tests.engine.test_chart_builder:missing",
        "tests.engine.test_chart_builder:TABLE",
        "nowhere.at_all:x",
    )
    monkeypatch.setattr(preflight_checks, "PACK", replace(preflight_checks.PACK, charts=names))
    found, broken = registry.chart_makers()
    assert [one.where for one in found] == ["tests.engine.test_chart_builder:racks"]
    assert [(one.where, one.why.partition(":")[0]) for one in broken] == [
        ("tests.engine.test_chart_builder:missing", "AttributeError"),
        ("tests.engine.test_chart_builder:TABLE", "TypeError"),
        ("nowhere.at_all:x", "ModuleNotFoundError"),
    ]
    report = api.judge(load(save(looked_at()), to_judge=True))
    assert [one.id for one in report.charts] == ["site.racks"]
    assert {one.where for one in report.coverage.broken} == set(names[1:])
    assert report.verdict is not VerdictKind.NO_GO
    assert api.judge(make_recording(job())).charts == (), "lint has none"


def racks(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    yield TABLE


def test_a_pack_accepts_only_a_tuple_of_names() -> None:
    with pytest.raises(TypeError, match="`charts` of a pack is a str; expected a tuple"):
        Pack(charts="preflight_checks:x")  # type: ignore[arg-type]
