"""Readers of each format accept a hundred generated reports, and the output is always the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from preflight.model.findings import Severity, Status, VerdictKind
from preflight.plugins import registry
from preflight.reporters import FORMATS
from preflight.reporters.base import Reporter, Style
from preflight.reporters.output import deliver, outputs
from tests.reporters.consumers import consumer_of, partition
from tests.reporters.generated import COUNT, report, reports
from tools.reference import formats

pytestmark = pytest.mark.thorough

REPORTERS: tuple[Reporter, ...] = registry.load(registry.REPORTERS).items


@pytest.mark.parametrize("reporter", REPORTERS, ids=lambda reporter: reporter.name)
def test_a_reader_of_the_format_accepts_a_hundred_reports(reporter: Reporter) -> None:
    read = consumer_of(reporter.name)
    for one in reports():
        read(reporter.render(one, Style()), one)


@pytest.mark.parametrize("reporter", REPORTERS, ids=lambda reporter: reporter.name)
def test_the_same_report_gives_the_same_bytes(reporter: Reporter) -> None:
    for seed in (0, 7, 11):
        assert reporter.render(report(seed), Style()) == reporter.render(report(seed), Style())


def test_each_node_is_in_exactly_one_list() -> None:
    lists = [registry.named(registry.REPORTERS, f"{which}-hosts") for which in ("passing", "failing", "unknown")]
    for one in reports():
        partition((reporter.render(one, Style()) for reporter in lists), one)


def test_writing_all_formats_together_changes_nothing(tmp_path: Path) -> None:
    everything = report(17)
    wanted = [f"{reporter.name}:{tmp_path / reporter.name}" for reporter in REPORTERS]
    deliver(everything, outputs(wanted), color=None)
    for reporter in REPORTERS:
        assert (tmp_path / reporter.name).read_bytes() == reporter.render(everything, Style()), reporter.name


def test_every_format_is_described_and_is_an_option() -> None:
    """The site's page of formats and the help of `--output` are made from the registry."""
    page, known = formats(), set(FORMATS)
    assert [name for name in known if f"## `{name}`" not in page] == []
    assert {reporter.name for reporter in REPORTERS} == known


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
    assert any(one.coverage.broken for one in found) and any(one.run.smoke_options.injected_fault for one in found)
    shown = Counter(chart.kind for one in found for chart in one.charts)
    assert set(shown) == {"table", "matrix", "timeline", "bars", "layout"} and min(shown.values()) > 3
    # With --allow-incomplete the exit code is 0, but the verdict is not go.
    assert any(one.verdict is VerdictKind.INCOMPLETE and one.exit_code == 0 for one in found)
