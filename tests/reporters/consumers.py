"""Readers of each format: real parsers and schemas, whose results are compared with the report.

`consumer_of` has one for each installed reporter: a function here, or `read` in the format's own test module.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jsonschema
import junitparser
from markdown_it import MarkdownIt
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_fd_to_metric_families
from pydantic import BaseModel
from sarif_pydantic import Sarif
from sarif_pydantic.sarif import Notification
from sarif_pydantic.sarif import Suppression as SarifSuppression

from preflight.engine.report import ExitCode, Report, hosts_of
from preflight.model.findings import Severity, Status
from tests.builders import assert_follows_schema


def read_text(data: bytes, report: Report) -> None:
    """The text has no control characters."""
    shown = data.decode().replace("\n", "")
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def read_json(data: bytes, report: Report) -> None:
    """The JSON follows the committed schema and equals the report."""
    document = assert_follows_schema(data)
    assert (document["verdict"], document["exit_code"]) == (report.verdict.value, report.exit_code)
    assert len(document["findings"]) == len(report.findings)
    assert_no_control_chars(data)


def read_compact_json(data: bytes, report: Report) -> None:
    """The compact JSON follows the same schema, and has every outcome that counts against the job and no other."""
    read_json(data, report)
    document = json.loads(data)
    assert {outcome["status"] for outcome in document["outcomes"]} <= {"fail", "unknown"}
    assert len(document["outcomes"]) == sum(o.status.value in ("fail", "unknown") for o in report.outcomes)
    assert document["summary"]["errors"] == sum(f.severity is Severity.ERROR for f in report.findings)


def read_sarif(data: bytes, report: Report) -> None:
    """The SARIF log follows the models, and each finding and open question is a result of its kind."""
    run = log_of(data)
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    kinds = Counter(result["kind"] for result in run["results"])
    assert kinds == Counter({"fail": len(report.findings) + len(report.suppressed), "open": len(required)}) - Counter()
    failing = [result for result in run["results"] if result["kind"] == "fail"]
    for result, finding in zip(failing, (*report.findings, *report.suppressed), strict=True):
        assert list(result["partialFingerprints"].values()) == [finding.fingerprint]
        assert len(result.get("relatedLocations", ())) == len(finding.locations[1:])
        assert bool(result["suppressions"]) == bool(finding.suppressed_by)
    for result in run["results"]:
        (place,) = result["locations"]
        # GitHub rejects a log with a result that has no physical location.
        assert not report.inputs or place["physicalLocation"]["region"]["startLine"] >= 1
    assert_no_control_chars(data)


# --- test results ---

#: Attributes and child elements that the schemas of Jenkins' xUnit plugin and of Ant allow.
_JUNIT: dict[str, tuple[set[str], set[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"name", "classname", "time"}, {"failure", "error", "skipped", "system-out", "system-err"}),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"type", "message"}, set()),
}


def read_junit(data: bytes, report: Report) -> junitparser.JUnitXml:
    """JUnit parsers accept the XML, its counts are right, and a case fails if the exit code is not 0."""
    _hold_junit(ElementTree.fromstring(data))
    found = junitparser.JUnitXml.fromstring(data)
    stated = (found.tests, found.failures, found.errors)
    counted = Counter(type(result).__name__ for suite in found for case in suite for result in case.result)
    assert stated == (sum(len(list(suite)) for suite in found), counted["Failure"], counted["Error"])
    assert bool(found.failures or found.errors) == (report.exit_code != ExitCode.GO)
    names = Counter((case.classname, case.name) for suite in found for case in suite)
    assert set(names.values()) == {1}
    for suite in found:
        assert suite.tests == len(list(suite)) and suite.time >= 0
        if suite.timestamp:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.timestamp)
    expected = len(report.findings) + len(report.suppressed) + len(report.coverage.broken) + 1
    expected += sum(outcome.status in (Status.PASS, Status.UNKNOWN) for outcome in report.outcomes)
    assert found.tests == expected
    return found


def _hold_junit(element: ElementTree.Element) -> None:
    attributes, children = _JUNIT[element.tag]
    assert set(element.keys()) <= attributes, element.keys()
    if element.tag == "testsuite":
        assert {"name", "tests", "failures", "errors"} <= set(element.keys())
    for child in element:
        assert child.tag in children, (element.tag, child.tag)
        _hold_junit(child)


# --- code hosts ---


class Command(NamedTuple):
    """One workflow command as a runner of GitHub Actions parses it."""

    name: str
    properties: dict[str, str]
    message: str


def commands(data: bytes) -> list[Command]:
    """Every line as a workflow command; any other line is an error.

    As documented: `::name key=value,key=value::message`; in the message `%`, CR and LF are escaped, in a value also
    `:` and `,`.
    """
    found = []
    for line in data.decode().split("\n")[:-1]:
        match = re.fullmatch(r"::(?P<name>[a-z-]+)(?: (?P<properties>[^:]*))?::(?P<message>.*)", line)
        assert match is not None, line
        pairs = [pair.partition("=") for pair in (match["properties"] or "").split(",") if pair]
        assert all(equals for _, equals, _ in pairs), line
        properties = {key: _unescaped(value, "%0D%0A%3A%2C%25") for key, _, value in pairs}
        assert len(properties) == len(pairs), line
        found.append(Command(match["name"], properties, _unescaped(match["message"], "%0D%0A%25")))
    return found


def _unescaped(text: str, known: str) -> str:
    assert not re.search(r"%(?!0D|0A|3A|2C|25)", text), text
    for escape in re.findall("%..", known):
        text = text.replace(escape, chr(int(escape[1:], 16)))
    return text


_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def read_github(data: bytes, report: Report) -> list[Command]:
    """Every line is a command that GitHub knows with properties that it knows, one for each finding."""
    found = commands(data)
    for command in found:
        assert command.name in ("error", "warning", "notice")
        assert set(command.properties) <= {"file", "line", "endLine", "col", "endColumn", "title"}
        assert command.properties["title"] and command.message
        if "col" in command.properties:
            assert command.properties["line"] == command.properties["endLine"]
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    assert len(found) == 1 + len(report.coverage.broken) + len(report.findings) + len(required)
    of_findings = found[1 + len(report.coverage.broken) :][: len(report.findings)]
    for command, finding in zip(of_findings, report.findings, strict=True):
        assert command.name == _LEVELS[finding.severity]
        assert command.properties["title"].startswith(f"{finding.id} ")
        assert command.properties.get("line", "") == str(finding.locations[0].line if finding.locations else "")
    return found


def tables(data: bytes) -> tuple[list[str], list[list[list[str]]]]:
    """The headings of a Markdown page, and its tables as rows of cell texts, as a browser shows them."""
    assert len(data) < 2**20
    tokens = MarkdownIt("commonmark").enable("table").parse(data.decode())
    headings: list[str] = []
    found: list[list[list[str]]] = []
    for before, token in itertools.pairwise(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline":
            kinds = {child.type for child in token.children or ()}
            assert kinds <= {"text", "text_special", "html_inline", "softbreak"}, kinds
            tags = {child.content for child in token.children or () if child.type == "html_inline"}
            assert tags <= {"<br>"}, tags
            shown = "".join("\n" if child.type == "html_inline" else child.content for child in token.children or ())
            if before.type in ("th_open", "td_open"):
                found[-1][-1].append(shown)
            elif before.type == "heading_open":
                headings.append(shown)
        assert token.type not in ("html_block", "fence", "code_block", "blockquote_open", "bullet_list_open", "hr")
    return headings, found


def read_github_summary(data: bytes, report: Report) -> None:
    """A heading with the verdict, a row for each finding and open question, and no markup of the report's."""
    (heading,), found = tables(data)
    assert heading == f"preflight {report.run.verb}: {report.verdict.value}"
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    assert [len(table) - 1 for table in found] == [n for n in (len(report.findings), len(required)) if n]
    for row, finding in zip(found[0][1:] if report.findings else (), report.findings, strict=True):
        assert row[1] == f"{finding.id} {finding.name}"


#: The schema of each entry in GitLab's documentation; GitLab's own validator is less strict.
_GITLAB = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "additionalProperties": False,
                "properties": {
                    "path": {"type": "string", "minLength": 1, "not": {"pattern": "^(\\./|/)"}},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                        "additionalProperties": False,
                    },
                },
            },
        },
    },
}


def read_gitlab(data: bytes, report: Report) -> list[dict[str, Any]]:
    """GitLab accepts the issues, and their fingerprints are unique."""
    assert not data.startswith(b"\xef\xbb\xbf"), "GitLab refuses a byte order mark"
    issues: list[dict[str, Any]] = json.loads(data)
    jsonschema.Draft202012Validator(_GITLAB).validate(issues)
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    required = {(o.id, o.subject, o.reason) for o in report.coverage.unknown_outcomes if o.required}
    assert len(issues) == len(report.findings) + len(required)
    assert_no_control_chars(data)
    return issues


# --- the rest ---


def samples(data: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels; both parsers must find the same ones, and the same families."""
    text = data.decode()
    found = []
    for parse in (openmetrics.text_fd_to_metric_families, text_fd_to_metric_families):
        families = list(parse(io.StringIO(text)))
        assert all(family.type == "gauge" and family.documentation for family in families)
        held = [sample for family in families for sample in family.samples]
        assert all(sample.timestamp is None for sample in held)
        found.append([((sample.name, tuple(sorted(sample.labels.items()))), sample.value) for sample in held])
    assert found[0] == found[1]
    assert len(dict(found[0])) == len(found[0])
    return dict(found[0])


def read_openmetrics(data: bytes, report: Report) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Parsers of Prometheus' text format and of OpenMetrics find the same numbers, which are the report's."""
    found = samples(data)
    assert data.endswith(b"# EOF\n")
    verdicts = {labels[0][1]: value for (name, labels), value in found.items() if name == "preflight_verdict"}
    assert {kind for kind, value in verdicts.items() if value} == {report.verdict.value}
    totals: Counter[str] = Counter()
    for (name, _), value in found.items():
        totals[name] += int(value)
    assert totals["preflight_findings"] == totals["preflight_rule_findings"] == len(report.findings)
    assert totals["preflight_outcomes"] == len(report.outcomes)
    assert totals["preflight_nodes"] == len(report.nodes)
    assert totals["preflight_exit_code"] == report.exit_code
    return found


def read_hosts(data: bytes, report: Report) -> list[str]:
    """One name per line, each a node of the report."""
    names = data.decode().splitlines()
    assert set(names) <= {record.node.name for record in report.nodes}
    return names


class _Tags(HTMLParser):
    """Collects tags, so that one that came from a text of the report is noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.extend(attrs)
        self._inside = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)


def read_html(data: bytes, report: Report) -> None:
    """The report's text is only text in the page, never a script or a handler."""
    tags = _Tags()
    tags.feed(data.decode())
    assert not any(script.strip() == "alert(1)" for script in tags.scripts)
    assert not any(name.startswith("on") for name, _ in tags.attributes)


CONSUMERS: dict[str, Callable[[bytes, Report], object]] = {
    "text": read_text,
    "json": read_json,
    "json:compact": read_compact_json,
    "sarif": read_sarif,
    "junit": read_junit,
    "github": read_github,
    "github-summary": read_github_summary,
    "gitlab": read_gitlab,
    "openmetrics": read_openmetrics,
    "html": read_html,
    "passing-hosts": read_hosts,
    "failing-hosts": read_hosts,
    "unknown-hosts": read_hosts,
}


def consumer_of(name: str) -> Callable[[bytes, Report], object]:
    """Return the reader of a format: from this module, or `read` of the module that tests it.

    Raises:
        KeyError: the format has neither.
    """
    if name in CONSUMERS:
        return CONSUMERS[name]
    module = importlib.import_module({"csv": "tests.reporters.test_concise_formats"}[name])
    read: Callable[[bytes, Report], object] = module.read
    return read


def assert_no_control_chars(data: bytes) -> None:
    """Assert that a JSON document has no control characters."""
    obeyed = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u200b-\u200f]")
    assert not obeyed.search(data.decode())


def partition(data: Iterator[bytes], report: Report) -> None:
    """Passing, failing and unknown nodes together are all nodes, each once."""
    names = [name for one in data for name in one.decode().split()]
    assert sorted(names) == sorted(record.node.name for record in report.nodes)
    assert hosts_of(report).passing == tuple(names[: len(hosts_of(report).passing)])


# Models of the SARIF standard that validate our logs, stricter than the library's.


def holds(model: type[BaseModel]) -> Callable[[Any], None]:
    """A validator of a list whose items this model describes."""

    def look(values: Any) -> None:
        for value in values:
            found = model.model_validate(value)
            assert not [path for path, extra in unknown_keys(found, model.__name__) if extra]

    return look


def is_a(*allowed: object) -> Callable[[Any], None]:
    """A validator of a value of one of these types."""

    def look(value: Any) -> None:
        assert value in allowed

    return look


#: Keys of run, invocation and result in SARIF 2.1.0 that sarif-pydantic 0.6 does not model where
#: they belong, each with what it must be.
LEFT_OUT: dict[str, Callable[[Any], None]] = {
    "columnKind": is_a("unicodeCodePoints"),
    "exitCode": is_a(0, 1, 3, 4, 5, 130, 143),
    "toolExecutionNotifications": holds(Notification),
    "toolConfigurationNotifications": holds(Notification),
    "suppressions": holds(SarifSuppression),
}


def log_of(data: bytes) -> dict[str, Any]:
    """The one run of a log, validated by the models."""
    document = json.loads(data)
    model = Sarif.model_validate(document)
    # The models accept any key; a key that they do not declare is unknown to SARIF, or missing in the models.
    for path, extra in unknown_keys(model, "sarif"):
        for key, value in extra.items():
            assert key in LEFT_OUT, f"{path}.{key}"
            LEFT_OUT[key](value)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert isinstance(run, dict)
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert ids == sorted(set(ids))
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
    return run


def unknown_keys(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model below `value` with the keys it does not declare; property bags may hold anything."""
    if isinstance(value, BaseModel):
        yield path, dict(value.model_extra or {})
        for name in type(value).model_fields:
            if name != "properties":
                yield from unknown_keys(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from unknown_keys(item, f"{path}[{index}]")
