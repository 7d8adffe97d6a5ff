"""Reported failures that lint is scored on: the learnt ones it was improved with, and the sealed ones it was not.

The address of a report decides its half. No rule is written or tuned for a sealed report, so the sealed score says how
lint does on jobs that its authors have not seen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from preflight import api
from preflight.model.findings import Finding, Severity
from tests.incidents.cases import toml

FOLDER = Path(__file__).parent
#: The collections of reports: their folder, and one in how many is sealed.
COLLECTIONS = {"first": (FOLDER, 3), "by_cause": (FOLDER / "by_cause", 2), "third": (FOLDER / "third", 3)}


@dataclass(frozen=True)
class Cause:
    """A line that may be blamed: the file, and a part of the line's text."""

    file: str
    text: str


@dataclass(frozen=True)
class Repair:
    """A text of a file, and the text that takes its place in the job without the fault."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Report:
    """One reported failure with a job of several files that has its fault.

    `cause` are the lines at which a finding is right. `words` is a pattern that one of its sentences has to match.
    Both were written from the report alone. `stops`: the job certainly stops or hangs. `repairs` make the same job
    without the fault; only the collection by cause has them.
    """

    address: str
    fault: str
    stops: bool
    cause: tuple[Cause, ...]
    words: str
    files: Mapping[str, str]
    repairs: tuple[Repair, ...] = ()

    def repaired(self) -> Report:
        """The report with the files of the job after the repairs."""
        files = dict(self.files)
        for repair in self.repairs:
            files[repair.file] = files[repair.file].replace(repair.old, repair.new)
        return replace(self, files=files)


@dataclass(frozen=True)
class Score:
    """Numbers of reports: all, found, those that certainly stop, and those of them found as an error."""

    reports: int
    found: int
    stops: int
    stops_at_error: int

    def __str__(self) -> str:
        return (
            f"{self.found} of {self.reports} found ({self.found / self.reports:.0%}), {self.stops_at_error} of the "
            f"{self.stops} that certainly stop at error ({self.stops_at_error / self.stops:.0%})"
        )


@dataclass(frozen=True)
class NodeReport:
    """One reported failure whose cause only the nodes show, and why, or which check looks there."""

    address: str
    fault: str
    reason: str


#: The scores that lint has reached, by collection and half. Those of the learnt halves are floors for every change;
#: those of the sealed halves are measured, not worked on.
REACHED = {
    ("first", "learnt"): Score(reports=95, found=82, stops=68, stops_at_error=50),
    ("first", "sealed"): Score(reports=54, found=26, stops=39, stops_at_error=15),
    ("by_cause", "learnt"): Score(reports=50, found=43, stops=42, stops_at_error=29),
    ("by_cause", "sealed"): Score(reports=41, found=30, stops=34, stops_at_error=14),
    ("third", "learnt"): Score(reports=58, found=49, stops=50, stops_at_error=22),
    ("third", "sealed"): Score(reports=33, found=20, stops=29, stops_at_error=11),
}
#: What lint found in the third collection before any of its rules was written for it: the jobs were written from the
#: reports, and lint ran on them once.
AT_FIRST_SIGHT = {
    "learnt": Score(reports=58, found=15, stops=50, stops_at_error=8),
    "sealed": Score(reports=33, found=9, stops=29, stops_at_error=5),
}
#: The sealed reports by class of cause: how many there are, and how many lint finds.
SEALED_BY_CAUSE = {
    "clusters": (3, 2),
    "collectives": (2, 2),
    "device_binding": (7, 3),
    "fsdp_and_precision": (7, 7),
    "paddle_launch": (5, 5),
    "paddle_training": (6, 3),
    "processes": (6, 4),
    "sizes": (2, 1),
    "zero_accumulation": (3, 3),
}


#: Reports that the coin sealed and that a rule was written with: they count as learnt.
OPENED = frozenset(
    (
        "https://github.com/PaddlePaddle/Paddle/issues/44261",
        "https://github.com/PaddlePaddle/Paddle/pull/32826",
        "https://github.com/PaddlePaddle/PaddleDetection/issues/3105",
        "https://github.com/PaddlePaddle/PaddleNLP/issues/6938",
        "https://github.com/PaddlePaddle/PaddleNLP/issues/8818",
        "https://github.com/huggingface/accelerate/issues/908",
    )
)


def is_sealed(address: str, collection: str = "first") -> bool:
    """Whether a report with this address is sealed, by the hash of the address."""
    drawn = int(hashlib.sha256(address.encode()).hexdigest(), 16) % COLLECTIONS[collection][1] == 0
    return drawn and address not in OPENED


def load_reports(half: str, collection: str = "first") -> tuple[Report, ...]:
    """The reports of `learnt` or `sealed`, by file and in the order written."""
    return tuple(report for reports in load_by_cause(half, collection).values() for report in reports)


def load_by_cause(half: str, collection: str = "by_cause") -> dict[str, tuple[Report, ...]]:
    """The reports of one half, by the name of their file: in the collection by cause, the class of cause."""
    found: dict[str, tuple[Report, ...]] = {}
    for path in sorted((COLLECTIONS[collection][0] / half).glob("*.toml")):
        reports: list[Report] = []
        for item in toml.loads(path.read_text())["report"]:
            item["cause"] = tuple(Cause(**place) for place in item["cause"])
            item["repairs"] = tuple(Repair(**each) for each in item.get("repairs", ()))
            reports.append(Report(**item))
        found[path.stem] = tuple(reports)
    return found


def load_node_reports() -> tuple[NodeReport, ...]:
    """The reports whose cause no file of the job shows."""
    return tuple(NodeReport(**item) for item in toml.loads((FOLDER / "nodes" / "reports.toml").read_text())["report"])


def lint_report(report: Report, folder: Path) -> list[Finding]:
    """The findings of lint at warning or above for the job of a report, written into `folder`."""
    for name, text in report.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [finding for finding in api.lint([folder], root=folder).findings if finding.severity is not Severity.INFO]


def blamed_lines(report: Report) -> set[tuple[str, int]]:
    """The lines of the cause as (file, line), with the other lines of a command that is continued by backslashes, or of
    a variable in a manifest, whose name and value stand on two lines.
    """
    lines: set[tuple[str, int]] = set()
    for place in report.cause:
        text = report.files[place.file].splitlines()
        for number, line in enumerate(text):
            if place.text not in line:
                continue
            first = last = number
            while first > 0 and text[first - 1].endswith("\\"):
                first -= 1
            while last + 1 < len(text) and text[last].endswith("\\"):
                last += 1
            if line.lstrip().startswith("- name:") and text[number + 1 : number + 2]:
                last += text[number + 1].lstrip().startswith("value:")
            lines.update((place.file, each + 1) for each in range(first, last + 1))
    return lines


def finds_the_cause(report: Report, finding: Finding) -> bool:
    """Whether a finding is at a line of the cause and its message speaks of it."""
    first = finding.locations[0]
    at_the_cause = (first.path, first.line) in blamed_lines(report)
    return at_the_cause and re.search(report.words, finding.message, re.IGNORECASE) is not None


def score(judged: Iterable[tuple[Report, list[Finding]]]) -> Score:
    """The score of reports with their findings."""
    reports = found = stops = stops_at_error = 0
    for report, findings in judged:
        right = [finding for finding in findings if finds_the_cause(report, finding)]
        reports += 1
        found += bool(right)
        stops += report.stops
        stops_at_error += report.stops and any(finding.severity is Severity.ERROR for finding in right)
    return Score(reports, found, stops, stops_at_error)


def reports_text() -> str:
    """The scores, the learnt reports and those of the nodes, as Markdown."""
    lines = [
        "",
        "## Reports by the hundred",
        "",
        f"{sum(each.reports for each in REACHED.values())} further reports, each with a job of several files that has"
        " its fault, in three collections:",
        "the first, one by class of cause, whose jobs must be silent after a stated repair, and a third of kinds that",
        "teams report most often. The address decides whether a report is learnt (lint was improved with it) or sealed",
        "(one in three of the first and the third collection, one in two of the second; no rule was written for it).",
        "The jobs of the third were written before lint ran on them, so its figures at first sight show best how lint",
        "does on jobs that it was not developed with.",
        "Both halves of the second and the third were written by those who wrote their rules.",
        "A report counts as found if a finding at warning or above is at the cause and speaks of it.",
        "",
        "| collection | reports | in all | found | certainly stop or hang | of these at error |",
        "|---|---|---|---|---|---|",
        *(
            f"| {collection.replace('_', ' ')} | {half} | {score.reports} | {score.found}"
            f" ({score.found / score.reports:.0%}) | {score.stops} |"
            f" {score.stops_at_error} ({score.stops_at_error / score.stops:.0%}) |"
            for (collection, half), score in REACHED.items()
        ),
        *(
            f"| third, at first sight | {half} | {score.reports} | {score.found}"
            f" ({score.found / score.reports:.0%}) | {score.stops} |"
            f" {score.stops_at_error} ({score.stops_at_error / score.stops:.0%}) |"
            for half, score in AT_FIRST_SIGHT.items()
        ),
        "",
        "The sealed reports of the second collection by class of cause:",
        "",
        "| class of cause | sealed | found |",
        "|---|---|---|",
        *(
            f"| {cause.replace('_', ' ')} | {reports} | {found} ({found / reports:.0%}) |"
            for cause, (reports, found) in SEALED_BY_CAUSE.items()
        ),
        "",
        "The learnt reports:",
        "",
        "| reported in | fault |",
        "|---|---|",
        *(
            f"| {_short(report.address)} | {report.fault} |"
            for collection in COLLECTIONS
            for report in load_reports("learnt", collection)
        ),
        "",
        "Reports whose cause no file of the job shows:",
        "",
        "| reported in | fault | what shows it |",
        "|---|---|---|",
        *(f"| {_short(report.address)} | {report.fault} | {report.reason} |" for report in load_node_reports()),
    ]
    return "\n".join(lines) + "\n"


def _short(address: str) -> str:
    """`owner/name#17` for the address of an issue or a pull request on GitHub, else the address."""
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)", address)
    return f"{found[1]}#{found[2]}" if found else address
