"""A report on one screen: never higher than it, worst first, and what is not shown is said and can be had."""

from __future__ import annotations

import re

import pytest

from preflight.judgement import failed, passed, unknown
from preflight.outcome import Severity
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.sheet import rows
from preflight.reporters.text import REPORTER
from tests.building import a_check, a_recording, a_rule, job, judged, reached, seen, span

REST = "less /home/someone/.local/state/preflight/last-lint.txt"


def shown(report: Report, *, width: int = 80, height: int | None = 24, color: bool = False) -> list[str]:
    """The lines of the report on a screen."""
    page = REPORTER.render(report, Style(width, color, height=height, rest=REST if height else ""))
    return page.decode().rstrip("\n").split("\n")


def many(rules: int, each: int = 1) -> Report:
    """Findings of so many rules; those with an even number are warnings."""

    def judging(number: int):  # type: ignore[no-untyped-def]
        return lambda _: [
            failed(
                f"run.sh:{line}",
                f"`--option-{number}={line}` is said here, and something quite different was expected of it. " * 3,
                at=span(f"some/folder/with/a/long/name/run{number}.sh", line),
                remedy="Say what was expected, in the words that the documentation has for it. " * 3,
            )
            for line in range(1, each + 1)
        ]

    found = [
        a_rule(judging(n), f"TST{n:03}", severity=Severity.WARNING if n % 2 == 0 else Severity.ERROR)
        for n in range(1, rules + 1)
    ]
    return judged(a_recording(job()), [*found, a_rule(lambda _: [passed("x"), unknown("y", "why")], "FIL900")])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 24), (100, 30), (80, 12)])
@pytest.mark.parametrize("rules", [4, 15, 60])
def test_it_fits_the_screen_above_the_prompt(width: int, height: int, rules: int) -> None:
    assert rows(shown(many(rules), width=width, height=height), width) <= height - 1


def test_colours_take_no_room() -> None:
    lines = shown(many(15), color=True)
    assert "\x1b[" in lines[0]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines] == shown(many(15))


def test_every_rule_has_a_line_or_is_counted() -> None:
    report = many(60)
    lines = shown(report)
    named = {match.group() for line in lines for match in re.finditer(r"TST\d{3}", line)}
    rest = next(line for line in lines if line.startswith("and "))
    counted = re.fullmatch(r"and (\d+) more rules: (?:(\d+) errors, )?(\d+) warnings?", rest)
    assert counted
    assert len(named) + int(counted[1]) == 60
    assert int(counted[2] or 0) + int(counted[3]) == int(counted[1])


def test_the_worst_come_first_and_are_told_at_greater_length() -> None:
    lines = shown(many(9), height=20)
    heads = [line for line in lines if re.match(r"(error|warning)\[", line)]
    assert [line.split("[")[0] for line in heads] == ["error"] * 5 + ["warning"] * 4
    assert lines.index(heads[1]) > 1
    assert lines.index(heads[-1]) == lines.index(heads[-2]) + 1


def test_findings_of_one_rule_are_counted_with_their_places() -> None:
    assert "error[TST001] fault-tst001 ×5  some/folder/with/a/long/name/run1.sh:1,2,3,4,5" in shown(
        many(3, 5), width=100
    )


def test_a_long_path_keeps_its_end() -> None:
    assert any(line.endswith("/name/run1.sh:1") and "…/" in line for line in shown(many(12), width=60))


def test_nodes_of_one_check_stand_together() -> None:
    check = a_check(
        lambda *_: [
            failed(f"node{n}", f"slow by {n} s", at=seen(f"node{n}"), nodes=[f"node{n}"], remedy="-")
            for n in range(1, 31)
        ]
    )
    record = a_recording(job(), verb="check", nodes=reached(*(f"node{n}" for n in range(1, 31))), stages=("node",))
    lines = shown(judged(record, [], [check]))
    assert lines[0] == "30 of 30 nodes answered over ssh: node[1-30]"
    assert any(line.endswith("×30  on node[1-30]") for line in lines)


def test_how_to_see_the_rest_is_a_line_of_its_own() -> None:
    lines = shown(many(15))
    at = lines.index(f"  {REST}")
    assert lines[at - 1] == "in short, to fit this screen; all 15 findings, and what passed:"
    assert lines[-1].startswith("NO-GO  8 errors, 7 warnings")


def test_without_a_file_the_option_is_named() -> None:
    page = REPORTER.render(many(15), Style(80, height=24)).decode()
    assert "-v or a pipe (| cat) shows all 15 findings" in page


def test_findings_for_which_there_is_room_are_told_in_full() -> None:
    whole = shown(many(3), height=None)
    short = shown(many(3), height=len(whole) - 3)
    first = whole[: whole.index("")]
    assert short[: len(first)] == first
    assert len(short) < len(whole) - 3


def test_what_fits_is_told_in_full() -> None:
    assert shown(many(4), height=200) == shown(many(4), height=None)


def test_what_had_to_be_told_and_could_not_is_named() -> None:
    rules = [a_rule(lambda _: [unknown("run.sh", "it could not be read", required=True)], "FIL901")]
    report = many(15)
    both = judged(
        a_recording(job()),
        [
            *rules,
            *[a_rule(lambda _, f=f: [failed("x", f.message, at=span(), remedy="-")], f.id) for f in report.findings],
        ],
    )
    assert "could not be told: FIL901 fault-fil901 (run.sh): it could not be read" in shown(both)
