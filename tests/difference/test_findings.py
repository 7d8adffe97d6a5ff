"""Findings of two reports: matched by fingerprint, and never called fixed where nobody looked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from preflight.difference.compare import compare
from preflight.difference.findings import matched
from preflight.difference.model import Answer, Difference
from preflight.judgement import Check, Rule, Verdict, failed, passed, unknown
from preflight.outcome import Confidence, Evidence, Finding, Location, Severity
from preflight.recording import Configuration
from preflight.report import Report
from tests.building import a_check, a_recording, a_rule, job, judged, reached, seen, span

NAMES = ("old.json", "new.json")


def speaking(*verdicts: Verdict, id: str = "TST001", **more: Any) -> Rule:
    """A rule that says this."""
    return a_rule(lambda job: iter(verdicts), id, **more)


def at(line: int = 3, snippet: str = "srun --nodes=2", **more: Any) -> Verdict:
    """A fault at a line."""
    return failed("run.sh", more.pop("message", "two nodes"), at=span(line=line, snippet=snippet), remedy="", **more)


def linted(*rules: Rule, **configured: Any) -> Report:
    return judged(a_recording(job(), configuration=Configuration(**configured)), rules)


def on(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A fault of nodes."""
    return failed("the port", "refused", at=seen(nodes[0]), nodes=nodes, remedy="", severity=severity)


def checked(*checks: Check, silent: tuple[str, ...] = (), nodes: tuple[str, ...] = ("a", "b", "c")) -> Report:
    answering = [name for name in nodes if name not in silent]
    return judged(
        a_recording(job(), verb="check", nodes=reached(*answering, silent=silent), stages=("node",)), (), checks
    )


def saying(*verdicts: Verdict, id: str = "TST501") -> Check:
    return a_check(lambda job, fleet, facts: iter(verdicts), id)


def diff(old: Report, new: Report, **more: Any) -> Difference:
    return compare(old, new, names=NAMES, **more)


def test_the_same_report_is_nothing_worse() -> None:
    report = linted(speaking(at()))
    found = diff(report, report)
    assert (found.answer, found.exit_code, found.unchanged) == (Answer.SAME, 0, 1)
    assert not found.appeared and not found.gone and not found.changed and not found.drift


def test_a_new_error_is_worse_and_a_mended_one_better() -> None:
    good, bad = linted(speaking(passed("run.sh"))), linted(speaking(at()))
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
def test_what_counts_is_what_fail_on_says(fail_on: str, code: int) -> None:
    good = linted(speaking(passed("run.sh")))
    warned = linted(speaking(at(), severity=Severity.WARNING))
    assert diff(good, warned, fail_on=fail_on).exit_code == code


def test_without_a_choice_what_the_newer_report_was_judged_with_counts() -> None:
    good = linted(speaking(passed("run.sh")))
    warned = linted(speaking(at(), severity=Severity.WARNING), fail_on="warning")
    assert (diff(good, warned).exit_code, diff(good, warned).fail_on) == (1, "warning")


def test_a_moved_line_is_the_same_finding_at_another_place() -> None:
    found = diff(linted(speaking(at(3))), linted(speaking(at(9))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("place",), False, 0)


def test_severity_and_message_are_told_and_only_the_former_is_worse() -> None:
    warned = linted(speaking(at(), severity=Severity.WARNING))
    failing = linted(speaking(at(message="three nodes")))
    (change,) = diff(warned, failing).changed
    assert (change.what, change.worse, change.counts) == (("severity", "message"), True, True)
    (back,) = diff(failing, warned).changed
    assert not back.worse and diff(failing, warned).answer is Answer.BETTER


def test_of_lines_with_one_text_those_that_stayed_are_paired_first() -> None:
    found = diff(linted(speaking(at(3), at(9))), linted(speaking(at(9))))
    assert [item.locations[0].line for item in found.fixed] == [3]
    assert not found.changed and found.unchanged == 1


def test_a_fault_that_spreads_is_one_finding_that_got_worse() -> None:
    found = diff(checked(saying(on("a"))), checked(saying(on("a", "b"))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("nodes",), True, 1)
    back = diff(checked(saying(on("a", "b"))), checked(saying(on("a"))))
    assert [(change.worse, change.unseen) for change in back.changed] == [(False, ())] and back.exit_code == 0
    (lost,) = diff(checked(saying(on("a", "b"))), checked(saying(on("a")), silent=("b",))).changed
    assert lost.unseen == ("b",)


def test_the_same_fault_on_another_node_is_new_and_the_old_one_fixed() -> None:
    found = diff(checked(saying(on("a"))), checked(saying(on("b"))))
    assert [item.finding.nodes for item in found.appeared] == [("b",)]
    assert [item.nodes for item in found.fixed] == [("a",)]


def test_what_is_no_longer_suppressed_is_worse() -> None:
    report = linted(speaking(at()))
    (finding,) = report.findings
    quiet = replace(report, findings=(), suppressed=(replace(finding, suppression="known", suppressed_by="waiver"),))
    (change,) = diff(quiet, report).changed
    assert (change.what, change.worse, change.counts) == (("suppression",), True, True)
    (back,) = diff(report, quiet).changed
    assert not back.worse and not diff(report, quiet).gone
    assert not diff(quiet, quiet).changed


# --- absent is not fixed ---


def test_a_rule_that_was_not_asked_has_mended_nothing() -> None:
    bad = linted(speaking(at()))
    for other, words in (
        (linted(speaking(at()), ignore=("TST",)), "did not look for it"),
        (linted(speaking(passed("x"), id="TST002"), select=("TST002",)), "did not look for it"),
        (linted(speaking(unknown("run.sh", "$N is open"))), "could not tell: $N is open"),
        (replace(linted(speaking(passed("run.sh"))), inputs=()), "did not read run.sh"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.untold
        assert diff(bad, other).fixed == ()
        (new,) = diff(other, bad).appeared
        assert words in new.unseen_before and new.counts


def test_a_rule_that_was_asked_and_is_silent_has_nothing_to_say_any_more() -> None:
    assert [item.id for item in diff(linted(speaking(at())), linted(speaking())).fixed] == ["TST001"]


def test_a_node_that_went_or_is_silent_is_not_mended() -> None:
    bad = checked(saying(on("a")))
    for other, words in (
        (checked(saying(passed("x")), silent=("a",)), "could not look at a: it did not answer"),
        (checked(saying(passed("x")), nodes=("b", "c")), "knows no node a"),
        (checked(saying(unknown("GPUs of a", "timeout"), passed("b"))), "could not tell: timeout"),
        (judged(a_recording(job(), verb="check", nodes=reached("a"), skipped=[("node", "no")]), (), []), "not look"),
        (judged(a_recording(job())), "did not look for it"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.untold


def test_pairs_are_the_same_whatever_the_order() -> None:
    def finding(line: int, snippet: str) -> Finding:
        place = Location("run.sh", line, 1, line, 9, snippet)
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    old = [finding(line, "same") for line in (1, 5, 9)]
    new = [finding(line, "same") for line in (9, 7)]
    pairs, left, right = matched(old, new)
    assert [(a.locations[0].line, b.locations[0].line) for a, b in pairs] == [(9, 9), (1, 7)]
    assert [item.locations[0].line for item in left] == [5] and right == []


def test_a_fault_without_nodes_is_not_taken_for_another_one() -> None:
    def finding(subject: str) -> Finding:
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", subject, evidence=(Evidence("f", "o"),))

    pairs, left, right = matched([finding("a")], [finding("b")])
    assert not pairs and len(left) == len(right) == 1


def test_thousands_of_findings_without_a_pair_take_no_time() -> None:
    def finding(path: str, number: int) -> Finding:
        place = Location(path, number, 1, number, 9, f"line {number}")
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    began = time.process_time()
    pairs, left, right = matched([finding("a", n) for n in range(4000)], [finding("b", n) for n in range(4000)])
    assert (len(pairs), len(left), len(right)) == (0, 4000, 4000)
    assert time.process_time() - began < 2


# --- outcomes and nodes ---


def test_what_is_not_told_any_more_is_neither_worse_nor_well() -> None:
    told = checked(saying(passed("a"), passed("b")))
    required = checked(saying(passed("a"), unknown("b", "no answer", required=True)))
    found = diff(told, required)
    (change,) = found.became_unknown
    assert (change.id, change.subjects, change.reason, change.required) == ("TST501", ("b",), "no answer", True)
    assert (found.answer, found.exit_code) == (Answer.UNTOLD, 3)
    assert diff(told, required, allow_incomplete=True).exit_code == 0
    assert [change.subjects for change in diff(required, told).became_told] == [("b",)]
    optional = checked(saying(passed("a"), unknown("b", "no answer")))
    assert diff(told, optional).exit_code == 0 and diff(told, optional).became_unknown


def test_a_launch_on_another_line_is_as_untold_as_before() -> None:
    old, new = (linted(speaking(passed("x"), unknown(f"run.sh:{line}", "open"))) for line in (3, 5))
    assert not diff(old, new).became_unknown and not diff(old, new).became_told


def test_nodes_that_came_went_fell_silent_and_answer_again() -> None:
    old = checked(saying(), nodes=("a", "b", "c"), silent=("c",))
    new = checked(saying(), nodes=("b", "c", "d"), silent=("b",))
    found = diff(old, new)
    assert [(change.node, change.move.value) for change in found.nodes] == [
        ("a", "went"),
        ("b", "silent"),
        ("c", "answers"),
        ("d", "came"),
    ]
    assert found.answer is Answer.UNTOLD
    # A lint has no nodes, and they did not go.
    assert not diff(old, linted(speaking())).nodes


def test_what_makes_two_reports_less_comparable_is_said() -> None:
    notes = diff(linted(speaking()), checked(saying())).notes
    assert any("`lint`" in note and "`check`" in note for note in notes)
    (note,) = diff(linted(speaking()), linted(speaking(), profile="pedantic")).notes
    assert note == "the profile differs: default before, pedantic now"


def test_another_version_of_preflight_or_of_a_pack_is_drift() -> None:
    report = linted(speaking())
    newer = replace(report, tool=replace(report.tool, version="0.2.0", plugins=("site-pack 1.1",)))
    older = replace(report, tool=replace(report.tool, plugins=("site-pack 1.0",)))
    assert [(d.what, d.before, d.after) for d in diff(older, newer).drift] == [
        ("preflight", "0.1.0", "0.2.0"),
        ("site-pack", "1.0", "1.1"),
    ]
