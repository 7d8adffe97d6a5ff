"""Which nodes are drained and resumed: only on evidence about a node alone, and never too many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from preflight.commands.drain import (
    Standing,
    blamed_nodes,
    decide,
    is_cleared,
    share_of,
)
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Severity
from preflight.model.recording import InjectedFault, SmokeOptions
from preflight.plugins.authoring import Check, Verdict, failed, passed, unknown
from tests.builders import job, judged, make_check, make_recording, reached, seen

NAMES = tuple(f"node{number}" for number in range(1, 21))
FREE = dict.fromkeys(NAMES, Standing(True))


def report_of(*checks: Check, silent: tuple[str, ...] = ()) -> Report:
    """The report of a run over twenty nodes."""
    return judged(
        make_recording(job(), verb="nodes", nodes=reached(*NAMES, silent=silent), stages=("node",)), checks=checks
    )


def on(*nodes: str, id: str = "TST501", severity: Severity = Severity.ERROR) -> Check:
    """A check that fails on each of these nodes, and passes on the others."""

    def judge(*_: object) -> Iterable[Verdict]:
        for node in NAMES:
            if node in nodes:
                yield failed(
                    node,
                    message=f"a GPU of {node} is lost",
                    remedy="Replace it.",
                    nodes=(node,),
                    at=seen(node),
                )
            else:
                yield passed(node)

    return make_check(judge, id, severity=severity)


def drained(report: Report, *, at_most: float = 0.1, **standings: Standing) -> list[str]:
    """The nodes that are drained."""
    return [item.node for item in decide(report, {**FREE, **standings}, at_most=at_most).of("drain")]


def test_a_node_with_a_fault_of_its_own_is_drained_with_the_reason() -> None:
    report = report_of(on("node3"))
    (item,) = decide(report, FREE, at_most=0.1).of("drain")
    assert (item.node, item.reason) == ("node3", "preflight: TST501 a GPU of node3 is lost")


def test_a_reason_holds_no_field_of_slurm() -> None:
    def judge(*_: object) -> Iterable[Verdict]:
        text = "it says NodeName=node1 State=IDLE+DRAIN Reason=preflight: GPU001"
        yield failed("node3", message=text, remedy="Look at it.", nodes=("node3",), at=seen("node3"))

    (reason,) = blamed_nodes(report_of(make_check(judge))).values()
    assert reason.endswith("it says NodeName:node1 State:IDLE+DRAIN Reason:preflight: GPU001")


def test_what_is_about_several_nodes_blames_none() -> None:
    def judge(*_: object) -> Iterable[Verdict]:
        both = ("node1", "node2")
        yield failed("node1 to node2", message="a slow link", remedy="Look at it.", nodes=both, at=seen("node1"))

    assert drained(report_of(make_check(judge))) == []


def test_what_is_unknown_or_a_warning_or_silent_drains_nobody() -> None:
    def cannot_tell(*_: object) -> Iterable[Verdict]:
        yield unknown("node4", "the driver does not answer", required=True, nodes=("node4",))

    assert drained(report_of(make_check(cannot_tell)), at_most=1) == []
    assert drained(report_of(on("node4", severity=Severity.WARNING)), at_most=1) == []
    assert drained(report_of(on(), silent=("node5",)), at_most=1) == []
    assert drained(report_of(on("node5"), silent=("node5",)), at_most=1) == []


def test_a_run_that_decides_nothing_changes_nothing() -> None:
    report = report_of(on("node3"))
    for code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.BUG):
        found = decide(replace(report, exit_code=code), FREE, at_most=1)
        assert found.items == () and "did not finish" in found.refused
    options = SmokeOptions(injected_fault=InjectedFault("kill", 0))
    injected = replace(report, run=replace(report.run, smoke_options=options))
    assert blamed_nodes(injected) == {}


def test_never_more_than_the_share() -> None:
    two, three = report_of(on("node1", "node2")), report_of(on("node1", "node2", "node3"))
    assert drained(two) == ["node1", "node2"]
    found = decide(three, FREE, at_most=0.1)
    assert found.of("drain") == () and "of 20 nodes allows 2" in found.refused
    # Those of earlier nights count, and so do nodes that this run did not look at.
    ours = Standing(True, False, "preflight: GPU001 of an earlier night")
    assert drained(two, node9=ours) == [] and drained(two, elsewhere=ours) == []
    assert drained(two, at_most=0.15, node9=ours) == ["node1", "node2"]
    assert drained(two, at_most=0) == []
    # Nodes that the scheduler does not know make no room.
    few = {name: Standing(True) for name in NAMES[:10]}
    found = decide(two, few, at_most=0.1)
    assert found.of("drain") == () and "of 10 nodes allows 1" in found.refused


def test_only_what_preflight_drained_is_resumed_and_only_when_it_is_over() -> None:
    report = report_of(on("node2"))
    ours, other = "preflight: TST501 a GPU is lost", "bad cable, ask Ann"

    def resumed(node: str, reason: str, *, in_service: bool = False) -> bool:
        standing = Standing(True, in_service, reason)
        return bool(decide(report, {**FREE, node: standing}, at_most=1).of("resume"))

    assert resumed("node1", ours)
    assert not resumed("node1", other) and not resumed("node1", f"see {ours}") and not resumed("node1", "")
    assert not resumed("node2", ours), "it still has it"
    assert not resumed("node1", "preflight: GPU001 lost"), "this run did not look at that"
    assert not resumed("node1", "preflight: "), "nothing says what it had"
    assert not resumed("node1", ours, in_service=True)
    assert not is_cleared(report, "node", "preflight: TST501"), "part of a name"


def test_a_node_that_is_out_of_service_or_strange_is_left() -> None:
    report = report_of(on("node3"))
    assert drained(report, node3=Standing(True, False, "bad cable")) == []
    assert drained(report, node3=Standing(False)) == []
    assert decide(report, {}, at_most=1).of("drain") == ()


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0%", 0.0), ("100%", 1.0), ("2.5%", 0.025)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["10", "101%", "-1%", "", "x%", "10 %"])
def test_wrong_shares(text: str) -> None:
    with pytest.raises(ValueError, match="percentage"):
        share_of(text)
