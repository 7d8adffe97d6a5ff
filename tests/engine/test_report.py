"""The verdict and exit code of every kind of run, and the shape that programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from preflight.config import document as settings
from preflight.engine import report as reports
from preflight.engine.report import ExitCode, crashed, to_json
from preflight.model import recording_io
from preflight.model.findings import Severity, Status, VerdictKind
from preflight.model.job import Launch, Note, NoteKind, Scope, Unresolved
from preflight.model.recording import Configuration
from preflight.plugins.authoring import Rule, failed, passed, unknown
from preflight.plugins.registry import Broken
from tests.builders import DOCS, assert_follows_schema, claim, job, judged, make_recording, make_rule, reached, span

GO, NO_GO, INCOMPLETE = VerdictKind.GO, VerdictKind.NO_GO, VerdictKind.INCOMPLETE


def finds(severity: Severity, id: str = "TST001") -> Rule:
    """A rule with a finding of this severity."""
    return make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")], id, severity=severity)


def cannot_tell(*, required: bool) -> Rule:
    """A rule with an unknown outcome."""
    return make_rule(lambda _: [unknown("x", "no answer", required=required)], "TST002")


ERROR, WARNING, INFO = finds(Severity.ERROR), finds(Severity.WARNING), finds(Severity.INFO)
NEEDED, OPTIONAL = cannot_tell(required=True), cannot_tell(required=False)
FINE = make_rule(lambda _: [passed("x")], "TST003")


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
        report = judged(make_recording(job(), configuration=configuration), rules)
        assert (report.verdict, report.exit_code) == (verdict, expected)


def test_a_run_without_a_job_is_not_judged() -> None:
    report = judged(make_recording(), [ERROR])
    assert (report.verdict, report.exit_code) == (VerdictKind.NOT_JUDGED, ExitCode.NOT_JUDGED)


@pytest.mark.parametrize(("allow", "exit_code"), [(False, ExitCode.NOT_JUDGED), (True, ExitCode.GO)])
def test_a_job_without_a_launch_is_not_judged(allow: bool, exit_code: ExitCode) -> None:
    configuration = Configuration(allow_incomplete=allow)
    report = judged(make_recording(job(launches=()), configuration=configuration), [FINE])
    assert (report.verdict, report.exit_code) == (VerdictKind.NOT_JUDGED, exit_code)


def test_an_error_is_a_no_go_even_without_a_launch() -> None:
    report = judged(make_recording(job(launches=())), [ERROR])
    assert (report.verdict, report.exit_code) == (NO_GO, 1)


def test_a_required_unknown_is_incomplete_even_without_a_launch() -> None:
    report = judged(make_recording(job(launches=())), [NEEDED])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, 3)


def test_the_report_lists_what_was_understood() -> None:
    lines = [Launch(f"run.sh:{number}", "torchrun", span(line=number)) for number in (1, 2, 3)]
    worlds = [
        claim("world_size", 8, scope=Scope("run.sh:1")),
        claim("world_size", Unresolved("$N is not set"), scope=Scope("run.sh:2")),
    ]
    unread = Note(NoteKind.MISSING, "`train.py` is not in the tree", span("train.py"))
    found = judged(
        make_recording(job(*worlds, launches=tuple(lines), notes=(unread,)), job(name="other.yaml", launches=())),
        [FINE, NEEDED],
    ).understood
    assert (found.launches, found.worlds_known, found.worlds_symbolic, found.worlds_unknown) == (3, 1, 1, 1)
    assert (found.jobs_without_launch, found.files_read, found.unread) == (1, 2, 1)
    assert [one.path for one in found.files_unread] == ["train.py"]
    assert (found.rules_judged, found.rules_undecided) == (1, ("TST002",))


BROKEN = (Broken("preflight.rules", "site-rules 2", "site.rules:late", "ImportError: no module named 'site'"),)


def test_a_plugin_that_cannot_be_loaded_makes_the_verdict_incomplete() -> None:
    assert judged(make_recording(job()), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(make_recording(), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(make_recording(job()), [ERROR], broken=BROKEN).exit_code == ExitCode.NO_GO


@pytest.mark.parametrize("exit_code", [130, 143])
def test_an_interrupted_run_is_never_go(exit_code: int) -> None:
    report = judged(make_recording(job(), verb="check", interrupted=exit_code), [FINE])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, exit_code)
    assert judged(make_recording(job(), verb="check", interrupted=exit_code), [ERROR]).verdict is NO_GO


def test_a_silent_node_makes_the_verdict_incomplete_for_any_selection() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a", silent=["b"]), stages=("node",))
    assert judged(recording, [FINE]).verdict is INCOMPLETE


@pytest.mark.parametrize("kind", [NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.CRASHED])
def test_an_unreadable_selected_input_makes_the_verdict_incomplete(kind: NoteKind) -> None:
    selected = job(notes=(Note(kind, "denied", span(), required=True),))
    followed = job(notes=(Note(kind, "denied", span()),))
    assert judged(make_recording(selected), [FINE]).verdict is INCOMPLETE
    assert judged(make_recording(followed), [FINE]).verdict is GO


def test_unknown_outcomes_are_listed_required_ones_first() -> None:
    late = make_rule(lambda _: [unknown("x", "?", required=True)], "TST009")
    report = judged(make_recording(job()), [FINE, OPTIONAL, late, ERROR])
    assert [outcome.id for outcome in report.coverage.unknown_outcomes] == ["TST009", "TST002"]
    counts = report.coverage
    assert (counts.passed, counts.failed, counts.unknown, counts.not_applicable) == (1, 1, 2, 0)
    assert [outcome.status for outcome in report.outcomes if outcome.finding] == [Status.FAIL]


def test_inputs_are_listed_once_with_their_digest() -> None:
    report = judged(make_recording(job(name="b.sh"), job(name="a.sh"), job(name="b.sh")))
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
    [("report", reports.schema), ("recording", recording_io.schema), ("config", settings.schema)],
)
def test_the_committed_schema_is_the_generated_one(name: str, schema: object) -> None:
    committed = (DOCS / f"{name}.schema.json").read_text()
    assert callable(schema)
    generated = json.dumps(schema(), indent=2, sort_keys=True) + "\n"
    assert committed == generated, "the schema changed: run `make schema`, and look whether it only grew"


def test_the_same_recording_gives_the_same_bytes() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    assert to_json(judged(recording, [ERROR, NEEDED])) == to_json(judged(recording, [NEEDED, ERROR]))
