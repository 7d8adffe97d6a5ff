"""The text report: carets under the right cells, folded nodes, no escape sequences from files."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from preflight.engine.report import Report, crashed
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job, Note, NoteKind, Span, Suppression, span_of
from preflight.model.recording import Recording
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight.plugins.registry import Broken
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from preflight.reporters.text.full_report import rows
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\nend"


def rendered(report: Report, *, width: int = 100, color: bool = False, verbosity: int = 0) -> str:
    """The report as text."""
    return REPORTER.render(report, Style(width, color, verbosity)).decode()


def report_of_rule(*verdicts: Verdict, severity: Severity = Severity.ERROR, subject: Job | None = None) -> Report:
    """The report of one rule with these verdicts."""
    return judged(make_recording(subject or job()), [make_rule(lambda _: verdicts, severity=severity)])


def test_a_whole_page() -> None:
    text = "#!/bin/bash\nsrun --nodes=2 torchrun --nnodes=4 train.py\n"
    first = span_of("run.sh", text, text.index("--nnodes"), text.index(" train"))
    second = span_of("run.sh", text, text.index("--nodes"), text.index(" torchrun"))
    rules = [
        make_rule(
            lambda _: [
                failed(
                    "run.sh:2",
                    "`--nnodes=4` waits for 4 nodes, but `--nodes=2` starts 2.",
                    at=first,
                    also=[(second, "2 nodes")],
                    remedy="Say --nnodes=$SLURM_NNODES.",
                )
            ],
            "WLD001",
            "launch-size-disagreement",
        ),
        make_rule(lambda _: [passed("run.sh"), passed("train.py")], "FIL001"),
        make_rule(lambda _: [unknown("run.sh:2", "$PORT is set by the caller")], "RDV001"),
    ]
    assert rendered(judged(make_recording(job()), rules)) == textwrap.dedent(
        """\
        error[WLD001] launch-size-disagreement
          `--nnodes=4` waits for 4 nodes, but `--nodes=2` starts 2.
          --> run.sh:2:25
          2 | srun --nodes=2 torchrun --nnodes=4 train.py
            |                         ^^^^^^^^^^
          --> run.sh:2:6  2 nodes
          2 | srun --nodes=2 torchrun --nnodes=4 train.py
            |      ^^^^^^^^^
          fix: Say --nnodes=$SLURM_NNODES.

        1 optional check could not be decided (-v lists it)

        passed in the files: 1 rule on input files
        NO-GO  1 error; 1 file in 1 job
        """
    )


# --- snippets ---


def marked(line: str, what: str, *, width: int = 100) -> str:
    """The text above the carets if `what` is marked in `line`."""
    start = line.index(what)
    place = span_of("run.sh", line, start, start + len(what))
    page = rendered(report_of_rule(failed("x", "wrong", at=place, remedy="-")), width=width).splitlines()
    number = next(index for index, row in enumerate(page) if row.startswith("  1 | "))
    above, below = page[number], page[number + 1]
    left = cell_len(below[: below.index("^")])
    right = left + below.count("^")
    assert cell_len(above) <= width
    return "".join(_cells(above)[left:right])


def _cells(text: str) -> list[str]:
    """A list with one entry per terminal cell; the second cell of a wide character is empty."""
    found: list[str] = []
    for character in text:
        if cell_len(character) == 0:
            found[-1] += character
        else:
            found.extend([character, *[""] * (cell_len(character) - 1)])
    return found


@pytest.mark.parametrize(
    ("line", "what", "above"),
    [
        ("srun --nodes=2", "--nodes=2", "--nodes=2"),
        ("\t\tsrun\t--nodes=2", "--nodes=2", "--nodes=2"),
        ("export NAME=训练任务 NODES=2", "NODES=2", "NODES=2"),
        ("export NAME=训练任务 NODES=2", "训练任务", "训练任务"),
        ("echo e\u0301e\u0301e\u0301 --nodes=2", "--nodes=2", "--nodes=2"),
        ("echo \x1b[31m --nodes=2", "--nodes=2", "--nodes=2"),
        ("            deeply --nodes=2", "--nodes=2", "--nodes=2"),
        ("--first=1", "--first=1", "--first=1"),
    ],
    ids=["plain", "tabs", "behind-wide", "wide", "combining", "escape", "indented", "at-the-start"],
)
def test_the_caret_is_under_the_marked_text(line: str, what: str, above: str) -> None:
    assert marked(line, what) == above
    assert marked(line, what, width=40) == above


def test_the_marked_part_of_a_long_line_is_shown() -> None:
    line = "torchrun " + "--option=value " * 6 + "--nnodes=4 " + "--other=value " * 6
    assert marked(line, "--nnodes=4", width=60) == "--nnodes=4"
    page = rendered(report_of_rule(failed("x", "wrong", at=span_of("run.sh", line, 99, 109), remedy="-")), width=60)
    (row,) = [row for row in page.splitlines() if row.startswith("  1 | ")]
    assert row.startswith("  1 | …")
    assert row.endswith("…")


@given(
    st.text(st.characters(exclude_characters="\n"), max_size=300),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(1, 140),
)
@example("00\x1f\x1f\x1f\U000f0000\U000f0000", 7, 0, 1)
def test_any_location_of_any_line_can_be_shown(line: str, start: int, length: int, width: int) -> None:
    place = span_of("run.sh", line, start, start + length)
    page = rendered(report_of_rule(failed("x", "wrong", at=place, remedy="-")), width=max(40, width))
    if line.strip():
        assert "^" in page
    for row in page.splitlines():
        assert cell_len(row) <= max(40, width)


def test_a_note_without_room_is_printed_below() -> None:
    place = span("some/where/run.sh", 3)
    verdict = failed("x", "wrong", at=span(), also=((place, "asked for here"),), remedy="-")
    assert "  --> some/where/run.sh:3:5  asked for here\n" in rendered(report_of_rule(verdict))
    assert "  --> some/where/run.sh:3:5\n      asked for here\n" in rendered(report_of_rule(verdict), width=40)


def test_a_location_beyond_the_snippet_has_a_caret() -> None:
    place = Span("run.sh", 1, 900, 4, 2, "short")
    assert "^" in rendered(report_of_rule(failed("x", "wrong", at=place, remedy="-")))


# --- hostile text ---


def hostile_report() -> Report:
    """A report in which every external text contains terminal commands."""
    place = Span(HOSTILE, 1, 1, 1, 3, HOSTILE)
    rules = [
        make_rule(
            lambda _: [
                failed(HOSTILE, HOSTILE, at=place, also=[(place, HOSTILE), seen(HOSTILE, HOSTILE)], remedy=HOSTILE),
                unknown(HOSTILE, HOSTILE, required=True, at=place),
                passed(HOSTILE),
                not_applicable(HOSTILE, HOSTILE),
            ]
        )
    ]
    checks = [make_check(lambda *_: [failed("x", HOSTILE, at=seen("a"), nodes=[HOSTILE, "b"], remedy="-")])]
    idle = (Suppression(HOSTILE, 9, (HOSTILE,), HOSTILE, place),)
    recording = make_recording(
        job(name=HOSTILE, suppressions=idle),
        verb="check",
        nodes=reached(HOSTILE, silent=[f"{HOSTILE}2"]),
        stages=("node", HOSTILE),
        skipped=[("smoke", HOSTILE)],
    )
    report = judged(recording, rules, checks, broken=(Broken("preflight.rules", HOSTILE, HOSTILE, HOSTILE),))
    assert report.findings
    return report


@pytest.mark.parametrize("verbosity", [-1, 0, 1, 2])
def test_no_control_character_of_a_file_or_node_reaches_the_terminal(verbosity: int) -> None:
    page = rendered(hostile_report(), verbosity=verbosity)
    assert all(character.isprintable() or character == "\n" for character in page)
    colored = rendered(hostile_report(), color=True, verbosity=verbosity)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert all(character.isprintable() or character == "\n" for character in ours)
    assert "owned" in page


def test_markup_is_text() -> None:
    page = rendered(report_of_rule(failed("x", "[bold]wrong[/] :smile: [link=http://x]", at=span(), remedy="-")))
    assert "[bold]wrong[/] :smile: [link=http://x]" in page


def test_colours_do_not_change_the_text() -> None:
    report = report_of_rule(failed("x", "wrong", at=span(), remedy="Say 4."))
    colored = rendered(report, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == rendered(report)


# --- nodes ---


def on_nodes(count: int) -> Recording:
    """A check recording of `count` nodes."""
    names = [f"gpu{number:03}" for number in range(count)]
    return make_recording(job(), verb="check", nodes=reached(*names), stages=("node",))


def test_one_fault_on_512_nodes_is_one_line() -> None:
    recording = on_nodes(512)
    check = make_check(
        lambda subject, fleet, facts: [
            failed(node.name, "no GPU is visible", at=seen(node.name, "0 GPUs"), nodes=[node.name], remedy="Load it.")
            for node in fleet.nodes
        ]
    )
    page = rendered(judged(recording, (), [check]))
    assert "error[TST501] fault-tst501  on gpu[000-511]\n" in page
    assert "  seen on gpu[000-511]: 0 GPUs; expected connected\n" in page
    assert len(page.splitlines()) < 14


def of_each_node(message: str) -> str:
    """The page of six nodes with this message, in which `{node}` and `{number}` differ."""
    check = make_check(
        lambda subject, fleet, facts: [
            failed(
                node.name,
                message.format(node=node.name, number=node.index),
                at=seen(node.name, "bad"),
                nodes=[node.name],
                remedy=f"Look at {node.name}.",
            )
            for node in fleet.nodes
        ]
    )
    return rendered(judged(on_nodes(6), (), [check]), width=200)


def test_findings_that_differ_only_in_the_node_are_shown_as_one() -> None:
    page = of_each_node("{node} cannot be reached")
    assert page.count("error[TST501]") == 1
    assert "  gpu000 cannot be reached\n" in page
    assert "  the same on 5 more nodes: gpu[001-005]\n" in page
    assert page.endswith("NO-GO  6 errors; 1 file in 1 job\n")


def test_findings_that_differ_in_a_number_are_shown_with_each_message() -> None:
    page = of_each_node("{node} has {number} GiB of memory")
    assert page.count("error[TST501]") == page.count("Look at") == 1
    assert all(f"  gpu{number:03} has {number} GiB of memory\n" in page for number in range(6))


def test_different_findings_of_one_check_stay_apart() -> None:
    words = ["red", "blue", "green", "pink", "grey", "white"]
    check = make_check(
        lambda subject, fleet, facts: [
            failed(node.name, f"{node.name} is {word}", at=seen(node.name, word), nodes=[node.name], remedy="Paint it.")
            for node, word in zip(fleet.nodes, words, strict=True)
        ]
    )
    assert rendered(judged(on_nodes(6), (), [check])).count("error[TST501]") == 6


def test_silent_nodes_and_skipped_stages_are_named_at_the_top() -> None:
    recording = make_recording(
        job(),
        verb="check",
        nodes=reached("a1", "a2", silent=["b7"]),
        stages=("open", "node"),
        skipped=[("smoke", "b7 cannot be reached")],
    )
    head = rendered(judged(recording)).splitlines()[:2]
    assert head == [
        "2 of 3 nodes responded over ssh: a[1-2]; silent: b7",
        "stages: open 1.0 s, node 1.0 s, smoke skipped (b7 cannot be reached)",
    ]


def test_undecided_required_checks_are_listed_with_their_location() -> None:
    page = rendered(report_of_rule(*(unknown(f"node{n}", "no answer", required=True, at=span()) for n in (1, 2))))
    assert "could not be decided:\n  TST001 fault-tst001 (node[1-2]): no answer\n  --> run.sh:3:5\n" in page
    assert "INCOMPLETE  2 required checks could not be decided" in page


def test_suppressed_findings_and_idle_comments_are_mentioned() -> None:
    comments = (
        Suppression("run.sh", 3, ("TST001",), "tried", span()),
        Suppression("run.sh", 9, ("TST001",), "", span("run.sh", 8)),
        Suppression("run.sh", 10, ("RDV01",), "", span("run.sh", 10)),
        Suppression("run.sh", 12, ("RDV001",), "", span("run.sh", 12)),
        Suppression("run.sh", 11, (), "", span("run.sh", 11)),
    )
    page = rendered(report_of_rule(failed("x", "wrong", at=span(), remedy="-"), subject=job(suppressions=comments)))
    assert "suppressed TST001 at run.sh:3: tried" in page
    assert "note: run.sh:8 suppresses TST001, which found nothing\n" in page
    assert "note: run.sh:10 suppresses RDV01, which is not a rule or check; the nearest: RDV" in page
    assert "run.sh:12" not in page, "whose rule was not asked in this run"
    assert "note: run.sh:11 suppresses nothing, because it names no rule" in page


def test_a_few_of_many_suppressed_findings_are_listed() -> None:
    comments = tuple(Suppression("run.sh", n, ("TST001",), f"reason {n}", span(line=n)) for n in range(1, 21))
    verdicts = [failed("x", f"wrong {n}", at=span(line=n), remedy="-") for n in range(1, 21)]
    report = report_of_rule(*verdicts, subject=job(suppressions=comments))
    page = rendered(report)
    assert page.count("suppressed TST001 at") == 12
    assert "8 findings more suppressed by comments or waivers (-v lists them)" in page
    assert rendered(report, verbosity=1).count("suppressed TST001 at") == 20


def test_undecided_checks_with_one_reason_are_listed_once() -> None:
    rules = [make_rule(lambda _: [unknown("run.sh", "cut short", required=True)], f"TST00{n}") for n in (1, 2)]
    page = rendered(judged(make_recording(job()), rules))
    assert "could not be decided:\n  TST001 fault-tst001, TST002 fault-tst002 (run.sh): cut short\n" in page


def test_files_without_a_launch_are_not_a_silent_go() -> None:
    assert "note: these files contain no known launch command" in rendered(
        report_of_rule(passed("x"), subject=job(launches=()))
    )


def test_a_guessed_job_is_marked_beside_its_findings() -> None:
    guessed = job(probable=True)
    assert "assumed to be one job" in rendered(
        report_of_rule(failed("x", "wrong", at=span(), remedy="-"), subject=guessed)
    )
    assert "by guess" not in rendered(report_of_rule(passed("x"), subject=guessed))


def test_evidence_that_the_message_quotes_is_not_repeated() -> None:
    long = "no route to it " * 5
    verdict = failed("x", f"b7: {long}", at=Evidence("agent", long, "an answer", "ssh b7 true", "b7"), remedy="-")
    page = rendered(report_of_rule(verdict))
    assert "seen on b7" not in page
    assert "try: ssh b7 true" in page


def test_messages_are_wrapped_to_a_narrow_terminal() -> None:
    page = rendered(
        report_of_rule(failed("x", "word " * 40, at=span(), remedy="word " * 40), severity=Severity.INFO), width=40
    )
    assert max(cell_len(row) for row in page.splitlines()) <= 40
    assert page.count("word") == 80


def test_passed_checks_are_counted_by_area_and_never_cut() -> None:
    rules = [make_rule(lambda _: [passed("x"), passed("y")], f"{chr(65 + n)}AA00{n}") for n in range(9)]
    page = rendered(judged(make_recording(job()), rules), width=40).splitlines()
    assert page[0] == "passed in the files: 9 rules on AAA,"
    assert page[1] == "  BAA, CAA, DAA, EAA, FAA, GAA, HAA, IAA"


def test_verbose_names_passed_and_undecided_checks() -> None:
    rules = [
        make_rule(lambda _: [passed("x"), passed("y")], "BAT901"),
        make_rule(lambda _: [passed("x")], "BAT902"),
        make_rule(lambda _: [unknown("x", "$N is set by the caller")], "ZZZ001"),
        make_rule(lambda _: [not_applicable("x", "no launch")], "ZZZ002"),
    ]
    page = rendered(judged(make_recording(job()), rules), verbosity=1)
    assert "passed in the files:\n  batch sizes: BAT901 fault-bat901 (2), BAT902 fault-bat902\n" in page
    assert "ZZZ001 fault-zzz001 (x): $N is set by the caller" in page
    assert "ZZZ002" not in page


def test_outcomes_of_many_jobs_are_listed_once() -> None:
    rule = make_rule(lambda subject: [not_applicable(subject.name, "no launch")])
    page = rendered(judged(make_recording(*(job(name=f"jobs/n{n}.sh") for n in range(40))), [rule]), verbosity=2)
    assert page.count("not-applicable TST001") == 1
    assert "and 28 more): no launch" in " ".join(page.split())


def test_quiet_prints_only_findings_and_verdict() -> None:
    report = report_of_rule(failed("x", "wrong", at=span(), remedy="-"), passed("y"), unknown("z", "outside"))
    page = rendered(report, verbosity=-1)
    assert "error[TST001]" in page
    assert "passed" not in page and "could not be told" not in page
    assert page.splitlines()[-1].startswith("NO-GO  1 error")


def test_findings_of_several_files_are_grouped_by_file() -> None:
    rules = [
        make_rule(lambda s: [failed(s.name, "bad", at=span(s.name), remedy="-")], "TST001"),
        make_rule(lambda s: [failed(s.name, "odd", at=span(s.name), remedy="-")], "TST002", severity=Severity.WARNING),
    ]
    page = rendered(judged(make_recording(job(name="a.sh"), job(name="b.sh")), rules))
    assert [line for line in page.splitlines() if line.endswith("1 error, 1 warning")] == [
        "a.sh  1 error, 1 warning",
        "b.sh  1 error, 1 warning",
    ]
    assert page.index("b.sh  1 error") > page.index("warning[TST002]")
    assert "a.sh  1 error" not in rendered(judged(make_recording(job(name="a.sh")), rules))


def test_statistics_count_each_rule_worst_and_most_frequent_first() -> None:
    rules = [
        make_rule(lambda s: [failed("x", "one", at=span(), remedy="-")], "TST001"),
        make_rule(lambda s: [failed("x", f"{n}", at=span(line=n + 1), remedy="-") for n in range(12)], "TST002"),
        make_rule(lambda s: [failed("x", "one", at=span(), remedy="-")], "TST000", severity=Severity.INFO),
    ]
    report = judged(make_recording(job()), rules)
    page = REPORTER.render(report, Style(verbosity=-1, statistics=True)).decode().splitlines()
    assert page == [
        "12  error    TST002 fault-tst002",
        " 1  error    TST001 fault-tst001",
        " 1  info     TST000 fault-tst000",
        "",
        "NO-GO  13 errors, 1 info; 1 file in 1 job",
    ]


def test_a_note_that_only_repeats_the_message_is_omitted() -> None:
    page = rendered(
        report_of_rule(failed("x", "no value", at=Note(NoteKind.MALFORMED, "no value", span()), remedy="-"))
    )
    assert page.count("no value") == 1


def test_verbose_lists_everything() -> None:
    report = report_of_rule(
        passed("run.sh"), not_applicable("train.py", "no launch"), unknown("x", "$N is set by the caller")
    )
    page = rendered(report, verbosity=2)
    assert "pass TST001 fault-tst001 (run.sh)" in page
    assert "not-applicable TST001 fault-tst001 (train.py): no launch" in page
    assert "$N is set by the caller" in page


@pytest.mark.parametrize(
    ("report", "last"),
    [
        (judged(make_recording()), "NOT JUDGED  no launch script or configuration found in the given paths"),
        (judged(make_recording(job())), "GO  nothing found; 1 file in 1 job"),
        (judged(make_recording(job(), interrupted=130)), "INCOMPLETE  nothing found; 1 file in 1 job; interrupted"),
        (
            crashed(RuntimeError("x"), verb="lint", created="", version=""),
            "INCOMPLETE  a bug in preflight ended the run; see standard error for details",
        ),
        (
            report_of_rule(
                *(failed(str(n), f"{n}", at=span(), remedy="-") for n in range(2)), severity=Severity.WARNING
            ),
            "GO  2 warnings; 1 file in 1 job",
        ),
    ],
    ids=["nothing", "go", "interrupted", "bug", "warnings"],
)
def test_the_last_line_is_the_verdict(report: Report, last: str) -> None:
    assert rendered(report).splitlines()[-1] == last


# A report on one screen: never higher than the screen, worst first, with a command that shows the rest.


REST = "less /home/someone/.local/state/preflight/last-lint.txt"


def summary_rendered(report: Report, *, width: int = 80, height: int | None = 24, color: bool = False) -> list[str]:
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
    assert rows(summary_rendered(many_findings(rules), width=width, height=height), width) <= height - 1


def test_colours_take_no_width() -> None:
    lines = summary_rendered(many_findings(15), color=True)
    assert "\x1b[" in lines[0]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines] == summary_rendered(many_findings(15))


def test_every_rule_has_a_line_or_is_counted() -> None:
    report = many_findings(60)
    lines = summary_rendered(report)
    named = {match.group() for line in lines for match in re.finditer(r"TST\d{3}", line)}
    rest = next(line for line in lines if line.startswith("and "))
    counted = re.fullmatch(r"and (\d+) more rules: (?:(\d+) errors, )?(\d+) warnings?", rest)
    assert counted
    assert len(named) + int(counted[1]) == 60
    assert int(counted[2] or 0) + int(counted[3]) == int(counted[1])


def test_the_worst_come_first_with_more_detail() -> None:
    lines = summary_rendered(many_findings(9), height=20)
    heads = [line for line in lines if re.match(r"(error|warning)\[", line)]
    assert [line.split("[")[0] for line in heads] == ["error"] * 5 + ["warning"] * 4
    assert lines.index(heads[1]) > 1
    assert lines.index(heads[-1]) == lines.index(heads[-2]) + 1


def test_findings_of_one_rule_are_counted_with_their_locations() -> None:
    assert "error[TST001] fault-tst001 ×5  some/folder/with/a/long/name/run1.sh:1,2,3,4,5" in summary_rendered(
        many_findings(3, 5), width=100
    )


def test_a_long_path_keeps_its_end() -> None:
    assert any(
        line.endswith("/name/run1.sh:1") and "…/" in line for line in summary_rendered(many_findings(12), width=60)
    )


def test_nodes_of_one_check_are_listed_together() -> None:
    check = make_check(
        lambda *_: [
            failed(f"node{n}", f"slow by {n} s", at=seen(f"node{n}"), nodes=[f"node{n}"], remedy="-")
            for n in range(1, 31)
        ]
    )
    record = make_recording(job(), verb="check", nodes=reached(*(f"node{n}" for n in range(1, 31))), stages=("node",))
    lines = summary_rendered(judged(record, [], [check]))
    assert lines[0] == "30 of 30 nodes responded over ssh: node[1-30]"
    assert any(line.endswith("×30  on node[1-30]") for line in lines)


def test_the_command_for_the_rest_has_its_own_line() -> None:
    lines = summary_rendered(many_findings(15))
    at = lines.index(f"  {REST}")
    assert lines[at - 1] == "shortened to fit this screen; to see all 15 findings and what passed:"
    assert lines[-1].startswith("NO-GO  8 errors, 7 warnings")


def test_without_a_file_the_option_is_named() -> None:
    page = REPORTER.render(many_findings(15), Style(80, height=24)).decode()
    assert "-v or a pipe (| cat) shows all 15 findings" in page


def test_findings_are_complete_if_there_is_room() -> None:
    whole = summary_rendered(many_findings(3), height=None)
    short = summary_rendered(many_findings(3), height=len(whole) - 3)
    first = whole[: whole.index("")]
    assert short[: len(first)] == first
    assert len(short) < len(whole) - 3


def test_a_short_report_is_complete() -> None:
    assert summary_rendered(many_findings(4), height=200) == summary_rendered(many_findings(4), height=None)


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
    assert "could not be decided: FIL901 fault-fil901 (run.sh): it could not be read" in summary_rendered(both)
