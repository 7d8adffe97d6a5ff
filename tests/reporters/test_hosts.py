"""Lists of nodes that are fit, not fit, or not told of, and what leaves the unfit ones out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.configuration import Configuration
from preflight.hosts import Hosts, hosts_of, ways_without
from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, unknown
from preflight.outcome import Severity
from preflight.recording import Recording, StageRecord
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.hosts import FAILING, PASSING, UNTOLD
from tests.building import a_check, a_recording, claim, job, judged, reached, seen, span

NAMES = tuple(f"node{number}" for number in range(1, 12))


def report(*verdicts: Verdict, silent: tuple[str, ...] = (), fail_on: str = "error", of: Job | None = None) -> Report:
    """The report on a check of eleven nodes with these verdicts."""
    recording: Recording = replace(
        a_recording(of or job()),
        verb="check",
        nodes=reached(*(name for name in NAMES if name not in silent), silent=silent),
        stages=(StageRecord("node", 0.0, 1.0),),
        configuration=Configuration(fail_on=fail_on),
    )
    return judged(recording, (), [a_check(lambda *_: verdicts)])


def broken(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A finding on these nodes."""
    return failed("x", "broken", at=seen(nodes[0]), nodes=nodes, remedy="-", severity=severity)


def rendered(found: Report) -> list[list[str]]:
    """The three lists as their files hold them."""
    return [reporter.render(found, Style()).decode().split() for reporter in (PASSING, FAILING, UNTOLD)]


def test_a_node_is_failing_where_a_finding_that_counts_names_it() -> None:
    found = report(broken("node3", "node10"), broken("node4", severity=Severity.WARNING))
    assert hosts_of(found).failing == ("node3", "node10")
    assert hosts_of(found).passing == tuple(name for name in NAMES if name not in ("node3", "node10"))
    assert hosts_of(report(broken("node4", severity=Severity.WARNING), fail_on="warning")).failing == ("node4",)


def test_a_silent_node_is_failing_and_one_with_an_open_question_is_not_passing() -> None:
    found = report(unknown("GPUs", "node1 did not answer in time.", required=True), silent=("node9",))
    passing, failing, untold = rendered(found)
    assert (failing, untold) == (["node9"], ["node1"])
    assert passing == [name for name in NAMES if name not in ("node1", "node9")], "node1 is not meant by node10"
    assert rendered(report(unknown("x", "node1: no root")))[2] == [], "what is not required is no open question"


@pytest.mark.parametrize(
    ("reason", "untold"),
    [
        ("node[2-3,10] did not answer", {"node2", "node3", "node10"}),
        ("node1, node2 and 6 more did not answer", set(NAMES)),
        ("the scheduler did not answer", set(NAMES)),
    ],
)
def test_an_open_question_is_open_for_every_node_it_may_mean(reason: str, untold: set[str]) -> None:
    assert set(hosts_of(report(unknown("GPUs", reason, required=True))).untold) == untold


def test_nodes_that_nobody_looked_at_are_not_passing() -> None:
    found = report()
    assert hosts_of(found).passing == NAMES
    skipped = replace(found, run=replace(found.run, stages=(StageRecord("node", 0.0, 0.0, skipped="no node"),)))
    assert hosts_of(skipped) == Hosts(untold=NAMES)
    assert hosts_of(replace(found, exit_code=130)) == Hosts(untold=NAMES)


def slurm() -> Claim:
    """What a batch header says."""
    return claim("nodes", 11, source="slurm", at=span("train.sbatch", snippet="#SBATCH --nodes=11"))


@pytest.mark.parametrize(
    ("of", "ways"),
    [
        (job(slurm()), ("sbatch --exclude=node[3,10] train.sbatch",)),
        (
            job(launches=(Launch("run.sh:3", "deepspeed", span()),)),
            ('deepspeed --exclude="node3@node10"',),
        ),
    ],
)
def test_it_says_how_to_leave_them_out(of: Job, ways: tuple[str, ...]) -> None:
    found = report(broken("node3", "node10"), of=of)
    assert ways_without(found, hosts_of(found)) == ways


def test_where_no_node_is_left_nothing_can_be_left_out() -> None:
    found = report(broken(*NAMES))
    assert hosts_of(found) == Hosts((), NAMES, ())
    assert ways_without(found, hosts_of(found)) == ()


def test_the_text_names_both_lists() -> None:
    from preflight.reporters.text import REPORTER

    text = REPORTER.render(report(broken("node3"), of=job(slurm())), Style()).decode()
    assert "not fit: node3; fit: node[1-2,4-11]" in text
    assert "sbatch --exclude=node3" in text
    assert "not fit" not in REPORTER.render(report(), Style()).decode()
