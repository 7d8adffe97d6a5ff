"""The verdict and exit code of every kind of run, and the shape that programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from preflight import report as reports
from preflight import saved, settings
from preflight.catalog import Broken
from preflight.job import Note, NoteKind
from preflight.judgement import Rule, failed, passed, unknown
from preflight.outcome import Severity, Status, VerdictKind
from preflight.recording import Configuration
from preflight.report import ExitCode, crashed, to_json
from tests.building import (
    DOCS,
    a_recording,
    a_rule,
    assert_follows_schema,
    job,
    judged,
    reached,
    span,
)

GO, NO_GO, INCOMPLETE = VerdictKind.GO, VerdictKind.NO_GO, VerdictKind.INCOMPLETE


def finds(severity: Severity, id: str = "TST001") -> Rule:
    """A rule with a finding of this severity."""
    return a_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")], id, severity=severity)


def cannot_tell(*, required: bool) -> Rule:
    """A rule that cannot tell."""
    return a_rule(lambda _: [unknown("x", "no answer", required=required)], "TST002")


ERROR, WARNING, INFO = finds(Severity.ERROR), finds(Severity.WARNING), finds(Severity.INFO)
NEEDED, OPTIONAL = cannot_tell(required=True), cannot_tell(required=False)
FINE = a_rule(lambda _: [passed("x")], "TST003")


@pytest.mark.parametrize(
    ("rules", "fail_on", "verdict", "exit_code", "allowed"),
    [
        ([FINE], "error", GO, 0, 0),
        ([], "error", GO, 0, 0),
        ([ERROR], "error", NO_GO, 1, 1),
        ([WARNING], "error", GO, 0, 0),
        ([INFO], "error", GO, 0, 0),
        ([ERROR], "warning", NO_GO, 1, 1),
        ([WARNING], "warning", NO_GO, 1, 1),
        ([INFO], "warning", GO, 0, 0),
        ([INFO], "info", NO_GO, 1, 1),
        ([OPTIONAL], "info", GO, 0, 0),
        ([NEEDED], "error", INCOMPLETE, 3, 0),
        ([NEEDED, WARNING], "error", INCOMPLETE, 3, 0),
        ([NEEDED, WARNING], "warning", NO_GO, 1, 1),
        ([NEEDED, ERROR], "error", NO_GO, 1, 1),
    ],
)
def test_verdict_and_exit_code(
    rules: Sequence[Rule], fail_on: str, verdict: VerdictKind, exit_code: int, allowed: int
) -> None:
    for allow, expected in ((False, exit_code), (True, allowed)):
        configuration = Configuration(fail_on=fail_on, allow_incomplete=allow)
        report = judged(a_recording(job(), configuration=configuration), rules)
        assert (report.verdict, report.exit_code) == (verdict, expected)


def test_without_a_job_there_is_nothing_to_do_and_nothing_is_called_go() -> None:
    report = judged(a_recording(), [ERROR])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, ExitCode.NOTHING_TO_DO)


BROKEN = (Broken("preflight.rules", "site-rules 2", "site.rules:late", "ImportError: no module named 'site'"),)


def test_a_plugin_that_cannot_be_loaded_makes_the_verdict_incomplete() -> None:
    assert judged(a_recording(job()), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(a_recording(), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(a_recording(job()), [ERROR], broken=BROKEN).exit_code == ExitCode.NO_GO


@pytest.mark.parametrize("exit_code", [130, 143])
def test_an_interrupted_run_is_never_go(exit_code: int) -> None:
    report = judged(a_recording(job(), verb="check", interrupted=exit_code), [FINE])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, exit_code)
    assert judged(a_recording(job(), verb="check", interrupted=exit_code), [ERROR]).verdict is NO_GO


def test_a_silent_node_makes_the_verdict_incomplete_whatever_was_selected() -> None:
    recording = a_recording(job(), verb="check", nodes=reached("a", silent=["b"]), stages=("node",))
    assert judged(recording, [FINE]).verdict is INCOMPLETE


@pytest.mark.parametrize("kind", [NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.CRASHED])
def test_a_selected_input_that_nobody_could_read_makes_the_verdict_incomplete(kind: NoteKind) -> None:
    selected = job(notes=(Note(kind, "denied", span(), required=True),))
    followed = job(notes=(Note(kind, "denied", span()),))
    assert judged(a_recording(selected), [FINE]).verdict is INCOMPLETE
    assert judged(a_recording(followed), [FINE]).verdict is GO


def test_what_could_not_be_told_is_listed_required_ones_first() -> None:
    late = a_rule(lambda _: [unknown("x", "?", required=True)], "TST009")
    report = judged(a_recording(job()), [FINE, OPTIONAL, late, ERROR])
    assert [outcome.id for outcome in report.coverage.not_told] == ["TST009", "TST002"]
    counts = report.coverage
    assert (counts.passed, counts.failed, counts.unknown, counts.not_applicable) == (1, 1, 2, 0)
    assert [outcome.status for outcome in report.outcomes if outcome.finding] == [Status.FAIL]


def test_inputs_are_listed_once_with_their_digest() -> None:
    report = judged(a_recording(job(name="b.sh"), job(name="a.sh"), job(name="b.sh")))
    assert [(file.path, len(file.sha256)) for file in report.inputs] == [("a.sh", 64), ("b.sh", 64)]


def test_a_bug_has_a_report_too() -> None:
    try:
        raise RuntimeError("out of\ncheese")
    except RuntimeError as error:
        report = crashed(error, verb="lint", created="2026-01-02T03:04:05+00:00", version="0.1.0")
    document = assert_follows_schema(to_json(report))
    assert (document["verdict"], document["exit_code"]) == ("incomplete", 5)
    assert document["coverage"]["broken"][0]["why"] == "RuntimeError: out of\ncheese"


# --- schemas ---


@pytest.mark.parametrize(
    ("name", "schema"),
    [("report", reports.schema), ("recording", saved.schema), ("config", settings.schema)],
)
def test_the_committed_schema_is_the_generated_one(name: str, schema: object) -> None:
    committed = (DOCS / f"{name}.schema.json").read_text()
    assert callable(schema)
    generated = json.dumps(schema(), indent=2, sort_keys=True) + "\n"
    assert committed == generated, "the schema changed: run `make schema`, and look whether it only grew"


def test_the_same_recording_gives_the_same_bytes() -> None:
    recording = a_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    assert to_json(judged(recording, [ERROR, NEEDED])) == to_json(judged(recording, [NEEDED, ERROR]))
