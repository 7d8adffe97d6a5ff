"""Lists of nodes that are fit, not fit, or unknown, and options that leave out the unfit ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.engine.report import Hosts, Report, hosts_of, starts_without
from preflight.model.configuration import Configuration
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.recording import Recording, StageRecord
from preflight.plugins.authoring import Verdict, failed, unknown
from preflight.reporters.base import Style
from preflight.reporters.data_formats import FAILING, PASSING, UNKNOWN
from tests.builders import claim, job, judged, make_check, make_recording, reached, seen, span

NAMES = tuple(f"node{number}" for number in range(1, 12))


def report(*verdicts: Verdict, silent: tuple[str, ...] = (), fail_on: str = "error", of: Job | None = None) -> Report:
    """The report on a check of eleven nodes with these verdicts."""
    recording: Recording = replace(
        make_recording(of or job()),
        verb="check",
        nodes=reached(*(name for name in NAMES if name not in silent), silent=silent),
        stages=(StageRecord("node", 0.0, 1.0),),
        configuration=Configuration(fail_on=fail_on),
    )
    return judged(recording, (), [make_check(lambda *_: verdicts)])


def broken(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A finding on these nodes."""
    return failed("x", "broken", at=seen(nodes[0]), nodes=nodes, remedy="-", severity=severity)


def rendered(found: Report) -> list[list[str]]:
    """The three lists as their files hold them."""
    return [reporter.render(found, Style()).decode().split() for reporter in (PASSING, FAILING, UNKNOWN)]


def test_a_node_named_by_a_counting_finding_is_failing() -> None:
    found = report(broken("node3", "node10"), broken("node4", severity=Severity.WARNING))
    assert hosts_of(found).failing == ("node3", "node10")
    assert hosts_of(found).passing == tuple(name for name in NAMES if name not in ("node3", "node10"))
    assert hosts_of(report(broken("node4", severity=Severity.WARNING), fail_on="warning")).failing == ("node4",)


def test_a_silent_node_is_failing_and_an_undecided_one_is_not_passing() -> None:
    found = report(unknown("GPUs", "no answer in time", nodes=("node1",), required=True), silent=("node9",))
    passing, failing, untold = rendered(found)
    assert (failing, untold) == (["node9"], ["node1"])
    assert passing == [name for name in NAMES if name not in ("node1", "node9")], "node1 is not meant by node10"
    assert rendered(report(unknown("x", "no root", nodes=("node1",))))[2] == [], (
        "what is not required is no open question"
    )


@pytest.mark.parametrize(
    ("verdict", "undecided"),
    [
        (unknown("GPUs", "no answer", nodes=("node2", "node10"), required=True), {"node2", "node10"}),
        (unknown("node3", "no answer", required=True), {"node3"}),
        (unknown("GPUs", "node1 did not answer", required=True), set(NAMES)),
        (unknown("GPUs", "no answer", nodes=("node77",), required=True), set(NAMES)),
    ],
    ids=["nodes", "subject", "no nodes", "strangers"],
)
def test_an_unknown_result_concerns_its_nodes_or_else_all(verdict: Verdict, undecided: set[str]) -> None:
    assert set(hosts_of(report(verdict)).unknown) == undecided


def test_unchecked_nodes_are_not_passing() -> None:
    found = report()
    assert hosts_of(found).passing == NAMES
    skipped = replace(found, run=replace(found.run, stages=(StageRecord("node", 0.0, 0.0, skipped="no node"),)))
    assert hosts_of(skipped) == Hosts(unknown=NAMES)
    assert hosts_of(replace(found, exit_code=130)) == Hosts(unknown=NAMES)


def slurm() -> Claim:
    """A batch header."""
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
def test_it_prints_how_to_exclude_nodes(of: Job, ways: tuple[str, ...]) -> None:
    found = report(broken("node3", "node10"), of=of)
    assert starts_without(found, hosts_of(found)) == ways


def test_all_nodes_cannot_be_excluded() -> None:
    found = report(broken(*NAMES))
    assert hosts_of(found) == Hosts((), NAMES, ())
    assert starts_without(found, hosts_of(found)) == ()


def test_the_text_names_both_lists() -> None:
    from preflight.reporters.text import REPORTER

    text = REPORTER.render(report(broken("node3"), of=job(slurm())), Style()).decode()
    assert "not fit: node3; fit: node[1-2,4-11]" in text
    assert "sbatch --exclude=node3" in text
    assert "not fit" not in REPORTER.render(report(), Style()).decode()
