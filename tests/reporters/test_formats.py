"""Every format of a hundred reports made by chance is taken by those who read it, and says the same each time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from preflight import catalog
from preflight.deliver import deliver, outputs
from preflight.outcome import Severity, Status, VerdictKind
from preflight.reporters.base import Reporter, Style
from tests.building import DOCS
from tests.reporters.consumers import CONSUMERS, partition
from tests.reporters.generated import COUNT, report, reports

REPORTERS: tuple[Reporter, ...] = catalog.load(catalog.REPORTERS).items


@pytest.mark.parametrize("reporter", REPORTERS, ids=lambda reporter: reporter.name)
def test_a_hundred_reports_are_taken_by_a_reader_of_the_format(reporter: Reporter) -> None:
    assert reporter.name in CONSUMERS, "a new format needs somebody who reads it in tests/reporters/consumers.py"
    for one in reports():
        CONSUMERS[reporter.name](reporter.render(one, Style()), one)


@pytest.mark.parametrize("reporter", REPORTERS, ids=lambda reporter: reporter.name)
def test_the_same_report_gives_the_same_bytes(reporter: Reporter) -> None:
    for seed in (0, 7, 11):
        assert reporter.render(report(seed), Style()) == reporter.render(report(seed), Style())


def test_the_lists_of_nodes_share_them_between_them() -> None:
    lists = [catalog.named(catalog.REPORTERS, f"{which}-hosts") for which in ("passing", "failing", "untold")]
    for one in reports():
        partition((reporter.render(one, Style()) for reporter in lists), one)


def test_all_formats_are_written_at_once_and_say_what_each_says_alone(tmp_path: Path) -> None:
    everything = report(17)
    wanted = [f"{reporter.name}:{tmp_path / reporter.name}" for reporter in REPORTERS]
    deliver(everything, outputs(wanted), color=None)
    for reporter in REPORTERS:
        assert (tmp_path / reporter.name).read_bytes() == reporter.render(everything, Style()), reporter.name


def test_every_format_is_on_the_page_about_formats() -> None:
    page = (DOCS / "formats.md").read_text()
    assert [reporter.name for reporter in REPORTERS if f"| `{reporter.name}`" not in page.replace(", `", " | `")] == []


def test_the_hundred_reports_are_of_every_kind() -> None:
    found = reports()
    assert len(found) == COUNT
    assert {one.verdict for one in found} == set(VerdictKind)
    assert {one.exit_code for one in found} >= {0, 1, 3, 4, 5, 130, 143}
    assert {finding.severity for one in found for finding in one.findings} == set(Severity)
    assert {outcome.status for one in found for outcome in one.outcomes} == set(Status)
    assert {finding.suppressed_by for one in found for finding in one.suppressed} == {"comment", "waiver"}
    kinds = Counter(
        (bool(finding.locations), bool(finding.nodes), bool(finding.evidence))
        for one in found
        for finding in one.findings
    )
    assert {(True, False, False), (True, True, False), (False, False, True), (False, True, True)} <= set(kinds)
    assert any(one.coverage.broken for one in found) and any(one.run.wish.drill for one in found)
    shown = Counter(exhibit.kind for one in found for exhibit in one.exhibits)
    assert set(shown) == {"table", "matrix", "timeline", "bars", "layout"} and min(shown.values()) > 3
    # What was allowed to stay open: the exit code is 0, and still it is no go.
    assert any(one.verdict is VerdictKind.INCOMPLETE and one.exit_code == 0 for one in found)
