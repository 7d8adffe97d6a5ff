"""Findings of two reports: matched by fingerprint, and never called fixed if they were not checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.commands.diff.compare import compare, match_findings
from preflight.commands.diff.difference import Answer, Difference
from preflight.engine.report import Report
from preflight.model.findings import Confidence, Evidence, Finding, Location, Severity
from preflight.model.recording import Configuration
from preflight.plugins.authoring import Check, Rule, Verdict, failed, passed, unknown
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span

NAMES = ("old.json", "new.json")


def rule_returning(*verdicts: Verdict, id: str = "TST001", **more: Any) -> Rule:
    """A rule with these verdicts."""
    return make_rule(lambda job: iter(verdicts), id, **more)


def at(line: int = 3, snippet: str = "srun --nodes=2", **more: Any) -> Verdict:
    """A fault at a line."""
    return failed("run.sh", more.pop("message", "two nodes"), at=span(line=line, snippet=snippet), remedy="", **more)


def lint_report(*rules: Rule, **configured: Any) -> Report:
    return judged(make_recording(job(), configuration=Configuration(**configured)), rules)


def on(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A fault of nodes."""
    return failed("the port", "refused", at=seen(nodes[0]), nodes=nodes, remedy="", severity=severity)


def checked(*checks: Check, silent: tuple[str, ...] = (), nodes: tuple[str, ...] = ("a", "b", "c")) -> Report:
    answering = [name for name in nodes if name not in silent]
    return judged(
        make_recording(job(), verb="check", nodes=reached(*answering, silent=silent), stages=("node",)), (), checks
    )


def rule_with(*verdicts: Verdict, id: str = "TST501") -> Check:
    return make_check(lambda job, fleet, facts: iter(verdicts), id)


def diff(old: Report, new: Report, **more: Any) -> Difference:
    return compare(old, new, names=NAMES, **more)


def test_the_same_report_is_not_worse() -> None:
    report = lint_report(rule_returning(at()))
    found = diff(report, report)
    assert (found.answer, found.exit_code, found.unchanged) == (Answer.SAME, 0, 1)
    assert not found.appeared and not found.gone and not found.changed and not found.drift


def test_a_new_error_is_worse_and_a_fixed_one_better() -> None:
    good, bad = lint_report(rule_returning(passed("run.sh"))), lint_report(rule_returning(at()))
    found = diff(good, bad)
    assert (found.answer, found.exit_code, [item.finding.id for item in found.appeared]) == (
        Answer.WORSE,
        1,
        ["TST001"],
    )
    assert found.appeared[0].counts and not found.appeared[0].unseen_before
    back = diff(bad, good)
    assert (back.answer, back.exit_code, [item.id for item in back.fixed]) == (Answer.BETTER, 0, ["TST001"])


@pytest.mark.parametrize(("fail_on", "code"), [("", 0), ("error", 0), ("warning", 1), ("info", 1)])
def test_fail_on_decides_which_findings_count(fail_on: str, code: int) -> None:
    good = lint_report(rule_returning(passed("run.sh")))
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING))
    assert diff(good, warned, fail_on=fail_on).exit_code == code


def test_the_newer_report_gives_the_default_of_fail_on() -> None:
    good = lint_report(rule_returning(passed("run.sh")))
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING), fail_on="warning")
    assert (diff(good, warned).exit_code, diff(good, warned).fail_on) == (1, "warning")


def test_a_moved_line_is_the_same_finding_at_a_new_location() -> None:
    found = diff(lint_report(rule_returning(at(3))), lint_report(rule_returning(at(9))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("place",), False, 0)


def test_severity_and_message_changes_are_reported_and_only_severity_is_worse() -> None:
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING))
    failing = lint_report(rule_returning(at(message="three nodes")))
    (change,) = diff(warned, failing).changed
    assert (change.what, change.worse, change.counts) == (("severity", "message"), True, True)
    (back,) = diff(failing, warned).changed
    assert not back.worse and diff(failing, warned).answer is Answer.BETTER


def test_equal_lines_are_paired_at_the_same_position_first() -> None:
    found = diff(lint_report(rule_returning(at(3), at(9))), lint_report(rule_returning(at(9))))
    assert [item.locations[0].line for item in found.fixed] == [3]
    assert not found.changed and found.unchanged == 1


def test_a_fault_that_spreads_is_one_finding_that_got_worse() -> None:
    found = diff(checked(rule_with(on("a"))), checked(rule_with(on("a", "b"))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("nodes",), True, 1)
    back = diff(checked(rule_with(on("a", "b"))), checked(rule_with(on("a"))))
    assert [(change.worse, change.unseen) for change in back.changed] == [(False, ())] and back.exit_code == 0
    (lost,) = diff(checked(rule_with(on("a", "b"))), checked(rule_with(on("a")), silent=("b",))).changed
    assert lost.unseen == ("b",)


def test_the_same_fault_on_another_node_is_new_and_the_old_one_fixed() -> None:
    found = diff(checked(rule_with(on("a"))), checked(rule_with(on("b"))))
    assert [item.finding.nodes for item in found.appeared] == [("b",)]
    assert [item.nodes for item in found.fixed] == [("a",)]


def test_a_finding_that_is_no_longer_suppressed_is_worse() -> None:
    report = lint_report(rule_returning(at()))
    (finding,) = report.findings
    quiet = replace(report, findings=(), suppressed=(replace(finding, suppression="known", suppressed_by="waiver"),))
    (change,) = diff(quiet, report).changed
    assert (change.what, change.worse, change.counts) == (("suppression",), True, True)
    (back,) = diff(report, quiet).changed
    assert not back.worse and not diff(report, quiet).gone
    assert not diff(quiet, quiet).changed


# --- absent is not fixed ---


def test_a_rule_that_did_not_run_fixed_nothing() -> None:
    bad = lint_report(rule_returning(at()))
    for other, words in (
        (lint_report(rule_returning(at()), ignore=("TST",)), "did not check it"),
        (lint_report(rule_returning(passed("x"), id="TST002"), select=("TST002",)), "did not check it"),
        (lint_report(rule_returning(unknown("run.sh", "$N is open"))), "could not decide it: $N is open"),
        (replace(lint_report(rule_returning(passed("run.sh"))), inputs=()), "did not read run.sh"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.unknown_because
        assert diff(bad, other).fixed == ()
        (new,) = diff(other, bad).appeared
        assert words in new.unseen_before and new.counts


def test_a_rule_that_ran_without_findings_fixed_them() -> None:
    assert [item.id for item in diff(lint_report(rule_returning(at())), lint_report(rule_returning())).fixed] == [
        "TST001"
    ]


def test_a_removed_or_silent_node_is_not_fixed() -> None:
    bad = checked(rule_with(on("a")))
    for other, words in (
        (checked(rule_with(passed("x")), silent=("a",)), "could not check a: it did not answer"),
        (checked(rule_with(passed("x")), nodes=("b", "c")), "does not have node a"),
        (checked(rule_with(unknown("GPUs of a", "timeout"), passed("b"))), "could not decide it: timeout"),
        (
            judged(make_recording(job(), verb="check", nodes=reached("a"), skipped=[("node", "no")]), (), []),
            "did not check",
        ),
        (judged(make_recording(job())), "did not check it"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.unknown_because


def test_pairs_do_not_depend_on_the_order() -> None:
    def finding(line: int, snippet: str) -> Finding:
        place = Location("run.sh", line, 1, line, 9, snippet)
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    old = [finding(line, "same") for line in (1, 5, 9)]
    new = [finding(line, "same") for line in (9, 7)]
    pairs, left, right = match_findings(old, new)
    assert [(a.locations[0].line, b.locations[0].line) for a, b in pairs] == [(9, 9), (1, 7)]
    assert [item.locations[0].line for item in left] == [5] and right == []


def test_faults_without_nodes_are_not_confused() -> None:
    def finding(subject: str) -> Finding:
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", subject, evidence=(Evidence("f", "o"),))

    pairs, left, right = match_findings([finding("a")], [finding("b")])
    assert not pairs and len(left) == len(right) == 1


@pytest.mark.timeout(60)
def test_thousands_of_unmatched_findings_are_compared_quickly() -> None:
    def finding(path: str, number: int) -> Finding:
        place = Location(path, number, 1, number, 9, f"line {number}")
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    pairs, left, right = match_findings([finding("a", n) for n in range(4000)], [finding("b", n) for n in range(4000)])
    assert (len(pairs), len(left), len(right)) == (0, 4000, 4000)


# --- outcomes and nodes ---


def test_a_newly_undecided_check_is_neither_worse_nor_better() -> None:
    told = checked(rule_with(passed("a"), passed("b")))
    required = checked(rule_with(passed("a"), unknown("b", "no answer", required=True)))
    found = diff(told, required)
    (change,) = found.became_unknown
    assert (change.id, change.subjects, change.reason, change.required) == ("TST501", ("b",), "no answer", True)
    assert (found.answer, found.exit_code) == (Answer.UNKNOWN, 3)
    assert diff(told, required, allow_incomplete=True).exit_code == 0
    assert [change.subjects for change in diff(required, told).became_known] == [("b",)]
    optional = checked(rule_with(passed("a"), unknown("b", "no answer")))
    assert diff(told, optional).exit_code == 0 and diff(told, optional).became_unknown


def test_a_moved_launch_stays_undecided() -> None:
    old, new = (lint_report(rule_returning(passed("x"), unknown(f"run.sh:{line}", "open"))) for line in (3, 5))
    assert not diff(old, new).became_unknown and not diff(old, new).became_known


def test_nodes_that_came_went_fell_silent_and_answer_again() -> None:
    old = checked(rule_with(), nodes=("a", "b", "c"), silent=("c",))
    new = checked(rule_with(), nodes=("b", "c", "d"), silent=("b",))
    found = diff(old, new)
    assert [(change.node, change.move.value) for change in found.nodes] == [
        ("a", "went"),
        ("b", "silent"),
        ("c", "answers"),
        ("d", "came"),
    ]
    assert found.answer is Answer.UNKNOWN
    # A lint has no nodes, so none were removed.
    assert not diff(old, lint_report(rule_returning())).nodes


def test_reasons_for_limited_comparability_are_reported() -> None:
    notes = diff(lint_report(rule_returning()), checked(rule_with())).notes
    assert any("`lint`" in note and "`check`" in note for note in notes)
    (note,) = diff(lint_report(rule_returning()), lint_report(rule_returning(), profile="pedantic")).notes
    assert note == "the profile differs: default before, pedantic now"


def test_a_different_version_of_preflight_or_a_pack_is_drift() -> None:
    report = lint_report(rule_returning())
    newer = replace(report, tool=replace(report.tool, version="0.2.0", plugins=("site-pack 1.1",)))
    older = replace(report, tool=replace(report.tool, plugins=("site-pack 1.0",)))
    assert [(d.what, d.before, d.after) for d in diff(older, newer).drift] == [
        ("preflight", "0.1.0", "0.2.0"),
        ("site-pack", "1.0", "1.1"),
    ]
