"""A report on one screen: never higher than the screen, worst first, with a command that shows the rest."""

from __future__ import annotations

import re

import pytest

from preflight.engine.report import Report
from preflight.model.findings import Severity
from preflight.plugins.authoring import failed, passed, unknown
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from preflight.reporters.text.full_report import rows
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span

REST = "less /home/someone/.local/state/preflight/last-lint.txt"


def rendered(report: Report, *, width: int = 80, height: int | None = 24, color: bool = False) -> list[str]:
    """The lines of the report on a screen."""
    page = REPORTER.render(report, Style(width, color, height=height, rest=REST if height else ""))
    return page.decode().rstrip("\n").split("\n")


def many_findings(rules: int, each: int = 1) -> Report:
    """Findings of this many rules; those with an even number are warnings."""

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
        make_rule(judging(n), f"TST{n:03}", severity=Severity.WARNING if n % 2 == 0 else Severity.ERROR)
        for n in range(1, rules + 1)
    ]
    return judged(make_recording(job()), [*found, make_rule(lambda _: [passed("x"), unknown("y", "why")], "FIL900")])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 24), (100, 30), (80, 12)])
@pytest.mark.parametrize("rules", [4, 15, 60])
def test_it_fits_the_screen_above_the_prompt(width: int, height: int, rules: int) -> None:
    assert rows(rendered(many_findings(rules), width=width, height=height), width) <= height - 1


def test_colours_take_no_width() -> None:
    lines = rendered(many_findings(15), color=True)
    assert "\x1b[" in lines[0]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines] == rendered(many_findings(15))


def test_every_rule_has_a_line_or_is_counted() -> None:
    report = many_findings(60)
    lines = rendered(report)
    named = {match.group() for line in lines for match in re.finditer(r"TST\d{3}", line)}
    rest = next(line for line in lines if line.startswith("and "))
    counted = re.fullmatch(r"and (\d+) more rules: (?:(\d+) errors, )?(\d+) warnings?", rest)
    assert counted
    assert len(named) + int(counted[1]) == 60
    assert int(counted[2] or 0) + int(counted[3]) == int(counted[1])


def test_the_worst_come_first_with_more_detail() -> None:
    lines = rendered(many_findings(9), height=20)
    heads = [line for line in lines if re.match(r"(error|warning)\[", line)]
    assert [line.split("[")[0] for line in heads] == ["error"] * 5 + ["warning"] * 4
    assert lines.index(heads[1]) > 1
    assert lines.index(heads[-1]) == lines.index(heads[-2]) + 1


def test_findings_of_one_rule_are_counted_with_their_locations() -> None:
    assert "error[TST001] fault-tst001 ×5  some/folder/with/a/long/name/run1.sh:1,2,3,4,5" in rendered(
        many_findings(3, 5), width=100
    )


def test_a_long_path_keeps_its_end() -> None:
    assert any(line.endswith("/name/run1.sh:1") and "…/" in line for line in rendered(many_findings(12), width=60))


def test_nodes_of_one_check_are_listed_together() -> None:
    check = make_check(
        lambda *_: [
            failed(f"node{n}", f"slow by {n} s", at=seen(f"node{n}"), nodes=[f"node{n}"], remedy="-")
            for n in range(1, 31)
        ]
    )
    record = make_recording(job(), verb="check", nodes=reached(*(f"node{n}" for n in range(1, 31))), stages=("node",))
    lines = rendered(judged(record, [], [check]))
    assert lines[0] == "30 of 30 nodes answered over ssh: node[1-30]"
    assert any(line.endswith("×30  on node[1-30]") for line in lines)


def test_the_command_for_the_rest_has_its_own_line() -> None:
    lines = rendered(many_findings(15))
    at = lines.index(f"  {REST}")
    assert lines[at - 1] == "shortened to fit this screen; to see all 15 findings and what passed:"
    assert lines[-1].startswith("NO-GO  8 errors, 7 warnings")


def test_without_a_file_the_option_is_named() -> None:
    page = REPORTER.render(many_findings(15), Style(80, height=24)).decode()
    assert "-v or a pipe (| cat) shows all 15 findings" in page


def test_findings_are_complete_if_there_is_room() -> None:
    whole = rendered(many_findings(3), height=None)
    short = rendered(many_findings(3), height=len(whole) - 3)
    first = whole[: whole.index("")]
    assert short[: len(first)] == first
    assert len(short) < len(whole) - 3


def test_a_short_report_is_complete() -> None:
    assert rendered(many_findings(4), height=200) == rendered(many_findings(4), height=None)


def test_undecided_required_checks_are_named() -> None:
    rules = [make_rule(lambda _: [unknown("run.sh", "it could not be read", required=True)], "FIL901")]
    report = many_findings(15)
    both = judged(
        make_recording(job()),
        [
            *rules,
            *[make_rule(lambda _, f=f: [failed("x", f.message, at=span(), remedy="-")], f.id) for f in report.findings],
        ],
    )
    assert "could not be decided: FIL901 fault-fil901 (run.sh): it could not be read" in rendered(both)
