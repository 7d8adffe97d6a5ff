"""Readers of each format accept a hundred generated reports, and the output is always the same."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from preflight.engine.report import Report
from preflight.model.findings import Severity, Status, VerdictKind
from preflight.model.measurements import Measurements, NodeProperties, Quantity
from preflight.plugins import registry
from preflight.reporters import FORMATS
from preflight.reporters.base import Reporter, Style
from preflight.reporters.openmetrics import REPORTER
from preflight.reporters.output import deliver, outputs
from preflight.reporters.sarif import REPORTER as SARIF_REPORTER
from tests.builders import judged, make_recording, reached
from tests.reporters.consumers import consumer_of, partition, samples
from tests.reporters.full_report import everything
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
    lists = [registry.load_named(registry.REPORTERS, f"{which}-hosts") for which in ("passing", "failing", "unknown")]
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


# The metrics for the textfile collector of Prometheus' node exporter.


def read(**configured: object) -> dict[str, float]:
    """Every sample as `name{label=value,...}` in the order of the labels' names."""
    found = samples(REPORTER.render(everything(**configured), Style()))
    return {
        f"{name}{{{','.join(f'{key}={value}' for key, value in labels)}}}": n for (name, labels), n in found.items()
    }


def test_metrics_for_alerts() -> None:
    expected = {
        "preflight_build{version=0.1.0}": 1,
        "preflight_run_timestamp_seconds{verb=check}": 1767323045,
        "preflight_verdict{verdict=go}": 0,
        "preflight_verdict{verdict=no-go}": 1,
        "preflight_verdict{verdict=incomplete}": 0,
        "preflight_exit_code{}": 1,
        "preflight_injected_fault{}": 0,
        "preflight_findings{severity=error}": 1,
        "preflight_findings{severity=info}": 0,
        "preflight_rule_findings{id=TST501,name=fault-tst501,severity=warning}": 1,
        "preflight_rule_nodes{id=TST501,name=fault-tst501}": 2,
        "preflight_suppressed_findings{by=comment}": 1,
        "preflight_outcomes{stage=node,status=fail}": 2,
        "preflight_outcomes{stage=node,status=unknown}": 2,
        "preflight_outcomes{stage=lint,status=unknown}": 0,
        "preflight_required_unknowns{}": 1,
        "preflight_nodes{state=passing}": 2,
        "preflight_nodes{state=unknown}": 1,
        "preflight_stage_duration_seconds{stage=node}": 1.75,
        "preflight_stage_skipped{stage=link}": 1,
        "preflight_stage_skipped{stage=node}": 0,
    }
    found = read()
    assert {name: found.get(name) for name in expected} == expected


def test_nodes_fail_if_a_finding_counts() -> None:
    found = read(fail_on="warning")
    assert found["preflight_nodes{state=failing}"] == 2


def test_a_run_without_findings_has_zero_counts() -> None:
    data = REPORTER.render(judged(make_recording()), Style()).decode()
    assert 'preflight_findings{severity="error"} 0\n' in data and data.endswith("# EOF\n")
    assert "preflight_rule_findings" not in data


def test_each_node_and_link_has_its_own_samples() -> None:
    bandwidth = Quantity("link_bandwidth", "throughput of a link", "bits_per_second", better="higher")
    temperature = Quantity("gpu_temperature", "temperature", "celsius")
    taken = Quantity("state", "a name that is taken")
    report = replace(
        judged(make_recording(verb="nodes", nodes=reached("a", "b", silent=("c",)), stages=("node",))),
        measurements=(
            Measurements(bandwidth, ("a",), (9.25e9,), ("b",)),
            Measurements(temperature, ("a", "b"), (41.0, 44.5)),
            Measurements(taken, ("a",), (7.0,)),
        ),
        properties=(NodeProperties("a", ("driver", "memory"), ('550 "x"', "1000")),),
    )
    found = samples(REPORTER.render(report, Style()))
    values = {(name, *(value for _, value in labels)): n for (name, labels), n in found.items()}
    assert values["preflight_link_bandwidth_bytes_per_second", "a", "b"] == 9.25e9 / 8
    assert values["preflight_node_gpu_temperature_celsius", "b"] == 44.5
    assert values["preflight_node_state", "c", "failing"] == 1 and values["preflight_node_state", "a", "passing"] == 1
    assert values["preflight_node_reached", "c"] == 0
    assert values["preflight_node_info", '550 "x"', "", "", "", "a", "", ""] == 1
    assert 7.0 not in values.values()


# sarif-tools, a third-party viewer, opens SARIF logs and lists the findings of the report.


_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The viewer's module that reads logs. It is imported alone, because its drawing libraries are not installed."""
    folder = Path(sys.prefix) / "sarif-tools"
    if not (folder / "sarif").is_dir():
        pytest.skip("no sarif-tools in .venv/sarif-tools (make test installs it)")
    monkeypatch.syspath_prepend(str(folder))
    import sarif.loader  # type: ignore[import-not-found]

    return sarif.loader


def opened(loader: Any, folder: Path, report: Report) -> Any:
    """The log of a report, loaded by the viewer."""
    path = folder / "report.sarif"
    path.write_bytes(SARIF_REPORTER.render(report, Style()))
    return loader.load_sarif_files(str(path))


def test_a_hundred_logs_have_a_record_per_finding_and_undecided_check(loader: Any, tmp_path: Path) -> None:
    for made in reports():
        found = opened(loader, tmp_path, made)
        findings = (*made.findings, *made.suppressed)
        required = [outcome for outcome in made.coverage.unknown_outcomes if outcome.required]
        expected = Counter((finding.id, _LEVELS[finding.severity]) for finding in findings)
        expected += Counter((outcome.id, "none") for outcome in required)
        records = found.get_records()
        assert Counter((record["Code"], record["Severity"]) for record in records) == expected
        places = {quote(f.locations[0].path, errors="replace") for f in findings if f.locations}
        assert places <= {record["Location"] for record in records}


def test_the_list_names_locations_and_nodes(loader: Any, tmp_path: Path) -> None:
    from sarif.operations import csv_op  # type: ignore[import-not-found]

    csv_op.generate_csv(opened(loader, tmp_path, everything()), str(tmp_path / "list.csv"), output_multiple_files=False)
    with (tmp_path / "list.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["Severity"], row["Location"], row["Line"]) for row in rows] == [
        ("error", "jobs/train%2C%20v2.sbatch", "3"),
        ("error", "run.sh", "9"),
        ("warning", "run.sh", "1"),
        ("none", "run.sh", "4"),
    ]
    assert "on node[1-2]" in rows[2]["Description"]
