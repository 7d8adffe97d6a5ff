"""Metrics for Prometheus: the textfile collector of the node exporter, or any scraper.

The document is read alike as Prometheus' text format, which that collector takes, and as OpenMetrics: all metrics are
gauges, none has a timestamp, and the last line is a comment to the one and the end to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field

from preflight.hosts import hosts_of
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity, Status, VerdictKind
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.cases import began, durations_of
from preflight.reporters.clean import clean

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Family:
    """One metric with its samples. `help` is plain words: neither format's escapes are needed in it."""

    name: str
    help: str
    unit: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)

    def add(self, value: float, /, **labels: str) -> None:
        """A sample; of two with the same labels the sum."""
        key = tuple(sorted((name, clean(said)) for name, said in labels.items()))
        self.samples[key] = self.samples.get(key, 0) + value


class OpenmetricsReporter:
    """Numbers about the run; no message and no place."""

    name = "openmetrics"

    def render(self, report: Report, style: Style) -> bytes:
        """The exposition in UTF-8; `style` has no influence."""
        lines = [line for family in families(report) if family.samples for line in _lines(family)]
        return "".join(f"{line}\n" for line in (*lines, "# EOF")).encode("utf-8", "replace")


def families(report: Report) -> Iterator[Family]:
    """Every metric of a report. Numbers that can be nought are there when they are, so that alerts need no guess."""
    build = Family("preflight_build", "Which preflight made the report. Always 1.")
    build.add(1, version=report.tool.version)
    yield build
    run = Family("preflight_run_timestamp_seconds", "When the run was made, in seconds since the epoch.", "seconds")
    when = began(report)
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
    drill = Family("preflight_drill", "1 where the run played a fault itself, so that it says nothing of the nodes.")
    drill.add(float(report.run.wish.drill is not None))
    yield drill
    yield from _of_findings(report)
    yield from _of_outcomes(report)
    yield from _of_nodes(report)
    yield from _of_stages(report)


def _of_findings(report: Report) -> Iterator[Family]:
    by_severity = Family("preflight_findings", "Findings that are not suppressed, by severity.")
    by_rule = Family("preflight_rule_findings", "The same by rule or check. Rules without findings are left out.")
    nodes = Family("preflight_rule_nodes", "Nodes that the findings of a rule or check name.")
    suppressed = Family("preflight_suppressed_findings", "Findings that do not count, by what suppresses them.")
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


def _of_outcomes(report: Report) -> Iterator[Family]:
    outcomes = Family("preflight_outcomes", "Outcomes of rules and checks, by stage and status.")
    counts = Counter((outcome.stage, outcome.status) for outcome in report.outcomes)
    for stage in sorted({outcome.stage for outcome in report.outcomes}):
        for status in Status:
            outcomes.add(counts[stage, status], stage=stage, status=status.value)
    yield outcomes
    opened = Family("preflight_required_unknowns", "What had to be told and could not be.")
    opened.add(sum(outcome.required for outcome in report.coverage.not_told))
    yield opened
    broken = Family("preflight_broken_plugins", "Parts of plugins that cannot be used.")
    broken.add(len(report.coverage.broken))
    yield broken


def _of_nodes(report: Report) -> Iterator[Family]:
    nodes = Family("preflight_nodes", "Nodes of the job by what became of them.")
    hosts = hosts_of(report)
    for state in ("passing", "failing", "untold"):
        nodes.add(len(getattr(hosts, state)), state=state)
    yield nodes


def _of_stages(report: Report) -> Iterator[Family]:
    took = Family("preflight_stage_duration_seconds", "How long a stage took.", "seconds")
    for name, seconds in durations_of(report).items():
        took.add(seconds, stage=name)
    yield took
    skipped = Family("preflight_stage_skipped", "1 for a stage that did not run to its end, else 0.")
    for name, is_skipped in _skipped(report).items():
        skipped.add(float(is_skipped), stage=name)
    yield skipped


def _skipped(report: Report) -> Mapping[str, bool]:
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
        listed = ",".join(f'{name}="{_escaped(said)}"' for name, said in labels)
        yield f"{family.name}{{{listed}}} {_number(value)}" if listed else f"{family.name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


REPORTER = OpenmetricsReporter()
