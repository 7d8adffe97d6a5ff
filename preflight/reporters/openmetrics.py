"""Metrics for Prometheus: for the textfile collector of the node exporter, or any scraper.

In addition to the run as a whole there is one sample per node: its result, the checks that it failed, and the
measurements of the node and its links, with the labels `node` and `peer`.

The output is valid both as Prometheus' text format, which that collector reads, and as OpenMetrics: all metrics are
gauges, none has a timestamp, and the last line is a comment in one format and the end marker of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from preflight._util.sanitize import clean
from preflight.engine.report import Report, hosts_of
from preflight.model.findings import Severity, Status, VerdictKind
from preflight.reporters.base import Style
from preflight.reporters.junit import durations_of, started_at

#: Properties of a node that become labels of its metric.
_INFO = ("driver", "kernel", "os", "gpu", "gpus", "processor")

#: Names of other node metrics, which a plugin's quantity cannot use.
_OF_NODES = ("preflight_node_state", "preflight_node_reached", "preflight_node_findings", "preflight_node_info")

#: Units that are converted: the unit to write, and the factor.
_BASE_UNITS = {"bits_per_second": ("bytes_per_second", 0.125)}

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """One metric with its samples. `help` is plain text that needs no escaping in either format."""

    name: str
    help: str
    unit: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)

    def put(self, value: float, /, **labels: str) -> None:
        """Set a sample. A later value replaces an earlier one with equal labels."""
        self.samples[tuple(sorted((name, clean(text)) for name, text in labels.items()))] = value

    def add(self, value: float, /, **labels: str) -> None:
        """Add a sample; samples with equal labels are summed."""
        key = tuple(sorted((name, clean(text)) for name, text in labels.items()))
        self.samples[key] = self.samples.get(key, 0) + value


class OpenmetricsReporter:
    """Renders numbers about the run; no messages and no locations."""

    name = "openmetrics"

    def render(self, report: Report, style: Style) -> bytes:
        lines = [line for family in families(report) if family.samples for line in _lines(family)]
        return "".join(f"{line}\n" for line in (*lines, "# EOF")).encode("utf-8", "replace")


def families(report: Report) -> Iterator[Family]:
    """Return every metric of a report. Counts that are 0 are included, so that alerts need no special case."""
    build = Family("preflight_build", "Version of preflight that wrote the report. Always 1.")
    build.add(1, version=report.tool.version)
    yield build
    run = Family("preflight_run_timestamp_seconds", "Start time of the run, in seconds since the epoch.", "seconds")
    when = started_at(report)
    if when is not None:
        run.add(when.timestamp(), verb=report.run.verb)
    yield run
    verdict = Family("preflight_verdict", "1 for the verdict of the run, 0 for the other two.")
    for kind in VerdictKind:
        verdict.add(float(report.verdict is kind), verdict=kind.value)
    yield verdict
    exit_code = Family("preflight_exit_code", "The exit code of the command. 0 is go.")
    exit_code.add(int(report.exit_code))
    yield exit_code
    fault = Family(
        "preflight_injected_fault", "1 if a fault was injected into the run, so it is not a verdict on the nodes."
    )
    fault.add(float(report.run.smoke_options.injected_fault is not None))
    yield fault
    yield from _finding_families(report)
    yield from _outcome_families(report)
    yield from _node_families(report)
    yield from _stage_families(report)
    yield from _single_node_families(report)
    yield from _measurement_families(report)


def _finding_families(report: Report) -> Iterator[Family]:
    by_severity = Family("preflight_findings", "Findings that are not suppressed, by severity.")
    by_rule = Family(
        "preflight_rule_findings",
        "Findings that are not suppressed, by rule or check. Rules without findings are left out.",
    )
    nodes = Family("preflight_rule_nodes", "Nodes that the findings of a rule or check name.")
    suppressed = Family("preflight_suppressed_findings", "Suppressed findings, by what suppresses them.")
    counts = Counter(finding.severity for finding in report.findings)
    for severity in Severity:
        by_severity.add(counts[severity], severity=severity.value)
    named: dict[tuple[str, str], set[str]] = {}
    for finding in report.findings:
        by_rule.add(1, id=finding.id, name=finding.name, severity=finding.severity.value)
        named.setdefault((finding.id, finding.name), set()).update(finding.nodes)
    for (id, name), of_rule in named.items():
        nodes.add(len(of_rule), id=id, name=name)
    for finding in report.suppressed:
        suppressed.add(1, by=finding.suppressed_by)
    yield from (by_severity, by_rule, nodes, suppressed)


def _outcome_families(report: Report) -> Iterator[Family]:
    outcomes = Family("preflight_outcomes", "Outcomes of rules and checks, by stage and status.")
    counts = Counter((outcome.stage, outcome.status) for outcome in report.outcomes)
    for stage in sorted({outcome.stage for outcome in report.outcomes}):
        for status in Status:
            outcomes.add(counts[stage, status], stage=stage, status=status.value)
    yield outcomes
    opened = Family("preflight_required_unknowns", "Required checks that could not be decided.")
    opened.add(sum(outcome.required for outcome in report.coverage.unknown_outcomes))
    yield opened
    broken = Family("preflight_broken_plugins", "Parts of plugins that cannot be used.")
    broken.add(len(report.coverage.broken))
    yield broken


def _node_families(report: Report) -> Iterator[Family]:
    nodes = Family("preflight_nodes", "Nodes of the job by result.")
    hosts = hosts_of(report)
    for state, names in (("passing", hosts.passing), ("failing", hosts.failing), ("unknown", hosts.unknown)):
        nodes.add(len(names), state=state)
    yield nodes


def _single_node_families(report: Report) -> Iterator[Family]:
    """Yield the result of each node, for dashboards that show nodes individually."""
    hosts = hosts_of(report)
    state = Family("preflight_node_state", "1 for the result of each node, 0 for the other two.")
    for number, names in enumerate(hosts):
        for name in names:
            for other, word in enumerate(("passing", "failing", "unknown")):
                state.put(float(number == other), node=name, state=word)
    yield state
    reached = Family("preflight_node_reached", "1 if the agent on the node responded, else 0.")
    for record in report.nodes:
        reached.put(float(not record.problem), node=record.node.name)
    yield reached
    failed = Family("preflight_node_findings", "Findings that are not suppressed, by node, rule and severity.")
    examined = {record.node.name for record in report.nodes}
    for finding in report.findings:
        for node in sorted(examined.intersection(finding.nodes)):
            failed.add(1, node=node, id=finding.id, name=finding.name, severity=finding.severity.value)
    yield failed
    info = Family("preflight_node_info", "Properties of each node, as labels. Always 1.")
    for item in report.properties:
        known = item.items
        info.put(1, node=item.node, **{name: known.get(name, "") for name in _INFO})
    yield info


def _measurement_families(report: Report) -> Iterator[Family]:
    """Yield one family per measured quantity; counters as gauges, because the node counts and not preflight."""
    for item in report.measurements:
        quantity = item.quantity
        # Prometheus counts in bytes; people and other outputs count the speed of links in bits.
        base, factor = _BASE_UNITS.get(quantity.unit, (quantity.unit, 1.0))
        unit = f"_{base}" if base else ""
        scope = "link" if item.peers else "node"
        name = f"preflight_{scope}_{quantity.name.removeprefix(f'{scope}_')}{unit}"
        if name in _OF_NODES:
            continue
        family = Family(name, f"{quantity.title[:1].upper()}{quantity.title[1:]}.", base)
        for row, (node, value) in enumerate(zip(item.nodes, item.values, strict=True)):
            if item.peers:
                family.put(value * factor, node=node, peer=item.peers[row])
            else:
                family.put(value * factor, node=node)
        yield family


def _stage_families(report: Report) -> Iterator[Family]:
    took = Family("preflight_stage_duration_seconds", "Duration of a stage.", "seconds")
    for name, seconds in durations_of(report).items():
        took.add(seconds, stage=name)
    yield took
    skipped = Family("preflight_stage_skipped", "1 for a stage that did not run to completion, else 0.")
    for name, is_skipped in _was_skipped(report).items():
        skipped.add(float(is_skipped), stage=name)
    yield skipped


def _was_skipped(report: Report) -> Mapping[str, bool]:
    found: dict[str, bool] = {}
    for stage in report.run.stages:
        found[stage.name] = found.get(stage.name, False) or bool(stage.skipped)
    return found


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} gauge"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    for labels, value in sorted(family.samples.items()):
        listed = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
        yield f"{family.name}{{{listed}}} {_number(value)}" if listed else f"{family.name} {_number(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


REPORTER = OpenmetricsReporter()
