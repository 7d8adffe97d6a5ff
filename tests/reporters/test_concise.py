"""One line per finding, for grep and editors."""

from __future__ import annotations

import re

from preflight.plugins.authoring import Verdict, failed, unknown
from preflight.reporters.base import Style
from preflight.reporters.text import REPORTER
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span


def lines(*verdicts: Verdict, nodes: tuple[str, ...] = (), width: int = 40) -> list[str]:
    """The lines of these verdicts."""
    if nodes:
        record = make_recording(job(), verb="check", nodes=reached(*nodes), stages=("node",))
        report = judged(record, [], [make_check(lambda *_: verdicts)])
    else:
        report = judged(make_recording(job()), [make_rule(lambda _: verdicts)])
    return REPORTER.render(report, Style(width, concise=True)).decode().splitlines()


def test_a_finding_in_a_file_is_always_one_line() -> None:
    message = "`--nnodes=4` is one thing, and\nthis is another. " * 8
    found = lines(failed("run.sh:3", message, at=span(), also=[span(line=9)], remedy="-"))
    assert found[0] == f"run.sh:3:5: error[TST001] {' '.join(message.split())}"
    assert found[1:] == ["preflight: NO-GO 1 error"]


def test_a_finding_of_nodes_begins_with_them() -> None:
    found = lines(
        failed("node", "slow", at=seen("n1"), nodes=["n1", "n2", "n3"], remedy="-"), nodes=("n1", "n2", "n3", "n4")
    )
    assert found[0] == "n[1-3]: error[TST501] slow"


def test_an_undecided_required_check_has_a_line() -> None:
    found = lines(unknown("run.sh:3", "it cannot be read", required=True, at=span()))
    assert found == [
        "run.sh:3:5: unknown[TST001] it cannot be read",
        "preflight: INCOMPLETE nothing found, 1 required check could not be decided",
    ]


def test_lines_match_the_patterns_of_editors() -> None:
    found = lines(failed("x", "wrong \x1b[2J", at=span("a b.sh", 12, 3), remedy="-"))
    match = re.fullmatch(
        r"(?P<path>.+?):(?P<line>\d+):(?P<col>\d+): (?P<level>\w+)\[(?P<id>\w+)\] (?P<text>.*)", found[0]
    )
    assert match
    assert match["path"] == "a b.sh"
    assert match["text"] == "wrong \\x1b[2J"
