"""What Prometheus reads from the node exporter's textfile folder."""

from __future__ import annotations

from preflight.reporters.base import Style
from preflight.reporters.openmetrics import REPORTER
from tests.building import a_recording, judged
from tests.reporters.consumers import samples
from tests.reporters.saying import everything


def read(**configured: object) -> dict[str, float]:
    """Every sample as `name{label=value,...}` in the order of the labels' names."""
    found = samples(REPORTER.render(everything(**configured), Style()))
    return {
        f"{name}{{{','.join(f'{key}={value}' for key, value in labels)}}}": n for (name, labels), n in found.items()
    }


def test_all_that_an_alert_may_ask_for() -> None:
    expected = {
        "preflight_build{version=0.1.0}": 1,
        "preflight_run_timestamp_seconds{verb=check}": 1767323045,
        "preflight_verdict{verdict=go}": 0,
        "preflight_verdict{verdict=no-go}": 1,
        "preflight_verdict{verdict=incomplete}": 0,
        "preflight_exit_code{}": 1,
        "preflight_drill{}": 0,
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
        "preflight_nodes{state=untold}": 1,
        "preflight_stage_duration_seconds{stage=node}": 1.75,
        "preflight_stage_skipped{stage=link}": 1,
        "preflight_stage_skipped{stage=node}": 0,
    }
    found = read()
    assert {name: found.get(name) for name in expected} == expected


def test_nodes_fail_as_soon_as_a_finding_counts() -> None:
    found = read(fail_on="warning")
    assert found["preflight_nodes{state=failing}"] == 2


def test_a_run_that_found_nothing_still_has_its_noughts() -> None:
    data = REPORTER.render(judged(a_recording()), Style()).decode()
    assert 'preflight_findings{severity="error"} 0\n' in data and data.endswith("# EOF\n")
    assert "preflight_rule_findings" not in data
