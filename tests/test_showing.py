"""Exhibits of packs: they reach the report and its JSON, and one that cannot be made takes nothing with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from preflight import api, catalog
from preflight.catalog import Exhibitor
from preflight.exhibit import (
    Bar,
    Bars,
    Cell,
    Column,
    Exhibit,
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
from preflight.judgement import MakeExhibits
from preflight.outcome import VerdictKind
from preflight.recording import Recording
from preflight.report import Report, adapter, report_on, to_json
from preflight.saved import load, save
from tests.building import a_recording, assert_follows_schema, job, reached

TABLE = Table(
    "site.racks",
    "Racks",
    "Which rack each of 2 nodes is in.",
    (Column("rack"), Column("power", "W")),
    (Row("a", (Cell("r1"), Cell(350))), Row("b", (Cell("r2", odd=True), Cell(None, why="no meter")))),
)
ALL: tuple[Exhibit, ...] = (
    TABLE,
    Matrix("site.m", "m", "-", "ms", ("a", "b"), ("a", "b"), (Mark(0, 1, 0.25, "ok"), Mark(1, 0, None, "bad", "-"))),
    Timeline("site.t", "t", "-", (Lane("rank 0", "a", (Span(0.0, 1.5, "join"),)),)),
    Bars("site.b", "b", "-", "ms", (Bar("rank 0", "a", 1.0), Bar("rank 1", "b", None, why="-"))),
    Layout("site.l", "l", "-", "bytes", (Place("a", (Piece("server 0", "server", 12.0),)),)),
)


def exhibitor(make: MakeExhibits, where: str = "site:racks") -> Exhibitor:
    """`make` as a plugin's pack names it."""
    return Exhibitor("site 1.0", where, make)


def always(*made: Any) -> Exhibitor:
    """One that shows the same of every job."""
    return exhibitor(lambda job, fleet, facts: made)


def looked_at(*jobs: str) -> Recording:
    """A live check of two nodes that asked nothing."""
    named = [job(name=name) for name in jobs or ("run.sh",)]
    return a_recording(*named, verb="check", nodes=reached("a", "b"), stages=("node",))


def shown(*exhibitors: Exhibitor, recording: Recording | None = None) -> Report:
    """The report with what these show, held against the schema."""
    report = report_on(recording or looked_at(), (), (), exhibitors=exhibitors)
    assert_follows_schema(to_json(report))
    return report


def test_every_kind_is_in_the_report_and_is_written_as_its_schema_says() -> None:
    report = shown(always(*ALL))
    assert report.exhibits == ALL
    written = json.loads(to_json(report))
    assert written == json.loads(adapter().dump_json(report))
    assert [one["kind"] for one in written["exhibits"]] == ["table", "matrix", "timeline", "bars", "layout"]
    assert adapter().validate_json(to_json(report)).exhibits == ALL


def crashes(job: object, fleet: object, facts: object) -> Iterable[Exhibit]:
    yield TABLE
    raise RuntimeError("no rack database")


def leaves(job: object, fleet: object, facts: object) -> Iterable[Exhibit]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (exhibitor(crashes), "RuntimeError: no rack database"),
        (exhibitor(leaves), "SystemExit: 3"),
        (always("a picture"), "str is no exhibit; there are Table"),
        (always(replace(TABLE, rows=("a",))), "'site.racks' is not of the shape of exhibits"),
        (always(Bars("x", "x", "-", "ms", (Bar("r", "a", math.nan),))), "'x' is not of the shape of exhibits"),
        (always(ALL[1]), "the id 'site.m' is taken"),
    ],
    ids=["raises", "exits", "text", "shape", "nan", "taken"],
)
def test_one_that_cannot_be_made_is_named_and_nothing_else_is_lost(bad: Exhibitor, why: str) -> None:
    fine = shown(always(*ALL[1:]))
    report = shown(always(*ALL[1:]), bad)
    (broken,) = report.coverage.broken
    assert (broken.plugin, broken.where) == ("site 1.0", "site:racks")
    assert why in broken.why
    assert report.exhibits == ALL[1:]
    assert (report.verdict, report.exit_code) == (fine.verdict, fine.exit_code), "an exhibit is no part of the verdict"


def test_what_several_jobs_share_is_shown_once_and_what_differs_has_a_name_of_its_own() -> None:
    def sized(job: object, fleet: object, facts: object) -> Iterable[Exhibit]:
        yield TABLE
        yield Bars("site.b", "Names", "-", "letters", (Bar("job", "", float(len(job.name))),))  # type: ignore[attr-defined]

    report = shown(exhibitor(sized), recording=looked_at("b.sh", "a.sh", "long.sh"))
    assert [(one.id, one.title) for one in report.exhibits] == [
        ("site.racks", "Racks"),
        ("site.b", "Names (a.sh)"),
        ("site.b.2", "Names (long.sh)"),
    ]


def test_a_list_in_the_place_of_a_tuple_is_taken_as_one() -> None:
    assert shown(always(replace(TABLE, rows=list(TABLE.rows)))).exhibits == (TABLE,)


def test_a_pack_names_them_beside_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    import preflight_checks

    names = ("tests.test_showing:racks", "tests.test_showing:missing", "tests.test_showing:TABLE", "nowhere.at_all:x")
    monkeypatch.setattr(preflight_checks, "EXHIBITS", names, raising=False)
    found, broken = catalog.exhibitors()
    assert [one.where for one in found] == ["tests.test_showing:racks"]
    assert [(one.where, one.why.partition(":")[0]) for one in broken] == [
        ("tests.test_showing:missing", "AttributeError"),
        ("tests.test_showing:TABLE", "TypeError"),
        ("nowhere.at_all:x", "ModuleNotFoundError"),
    ]
    report = api.judge(load(save(looked_at()), to_judge=True))
    assert [one.id for one in report.exhibits] == ["site.racks"]
    assert {one.where for one in report.coverage.broken} == set(names[1:])
    assert report.verdict is not VerdictKind.NO_GO
    assert api.judge(a_recording(job())).exhibits == (), "lint has none"


def racks(job: object, fleet: object, facts: object) -> Iterable[Exhibit]:
    yield TABLE


def test_names_that_are_no_tuple_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import preflight_checks

    monkeypatch.setattr(preflight_checks, "EXHIBITS", "preflight_checks:x", raising=False)
    found, broken = catalog.exhibitors()
    assert not found
    assert [(one.where, one.why.partition(":")[0]) for one in broken] == [("EXHIBITS", "TypeError")]
