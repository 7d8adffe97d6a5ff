"""The metrics for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.measurements import Measurements, NodeProperties, Quantity
from preflight.reporters.base import Style
from preflight.reporters.openmetrics import REPORTER
from tests.builders import judged, make_recording, reached
from tests.reporters.consumers import samples
from tests.reporters.full_report import everything

pytestmark = pytest.mark.thorough


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
