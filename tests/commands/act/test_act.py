"""Which nodes are drained and resumed: only on evidence about a node alone, and never too many."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from preflight._util.usage_error import UsageError
from preflight.commands.drain import (
    KUBERNETES_CONDITION,
    KUBERNETES_KEY,
    Decision,
    Kubernetes,
    Slurm,
    Standing,
    act_on,
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
from tests.cluster import Cluster
from tests.cluster.fixtures import require_virtual_nodes
from tests.cluster.slurm import Slurm as RealSlurm
from tests.cluster.slurm import require_slurm, slurm
from tests.integrations.test_slurm import COMMAND, put

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
    assert found.of("drain") == () and "of 20 nodes is 2" in found.refused
    # Those of earlier nights count, and so do nodes that this run did not look at.
    ours = Standing(True, False, "preflight: GPU001 of an earlier night")
    assert drained(two, node9=ours) == [] and drained(two, elsewhere=ours) == []
    assert drained(two, at_most=0.15, node9=ours) == ["node1", "node2"]
    assert drained(two, at_most=0) == []
    # Nodes that the scheduler does not know make no room.
    few = {name: Standing(True) for name in NAMES[:10]}
    found = decide(two, few, at_most=0.1)
    assert found.of("drain") == () and "of 10 nodes is 1" in found.refused


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


# Nodes of Kubernetes are tainted and freed, with a stub of kubectl.


STUB = Path(__file__).with_name("kubectl_stub.py")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    """A cluster of the twenty nodes; its state by name."""
    file = tmp_path / "nodes.json"
    items = [{"metadata": {"name": name}, "spec": {}, "status": {"conditions": []}} for name in NAMES]
    file.write_text(json.dumps({"items": items}))
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" "{file}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return lambda: {item["metadata"]["name"]: item for item in json.loads(file.read_text())["items"]}


@pytest.mark.thorough
def test_a_node_is_tainted_and_freed(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "act.log"
    broken, repaired = report_of(on("node3")), report_of(on())
    act_on(broken, "kubernetes", really=False, at_most=0.1, say=said.append, log_file=log)
    assert f"kubectl taint node node3 --overwrite {KUBERNETES_KEY}=true:NoSchedule" in said
    assert "taints" not in nodes()["node3"]["spec"]
    act_on(broken, "kubernetes", really=True, at_most=0.1, say=said.append, log_file=log)
    node = nodes()["node3"]
    assert node["spec"]["taints"] == [{"key": KUBERNETES_KEY, "value": "true", "effect": "NoSchedule"}]
    assert node["metadata"]["annotations"][KUBERNETES_KEY] == "preflight: TST501 a GPU of node3 is lost"
    (condition,) = node["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (KUBERNETES_CONDITION, "True")
    act_on(broken, "kubernetes", really=True, at_most=0.1, say=said.append)
    assert said[-1] == "no node is drained or resumed"
    act_on(repaired, "kubernetes", really=True, at_most=0.1, say=said.append, log_file=log)
    node = nodes()["node3"]
    assert node["spec"]["taints"] == [] and node["metadata"]["annotations"] == {}
    assert node["status"]["conditions"][0]["status"] == "False"
    results = [json.loads(line)["result"] for line in log.read_text().splitlines()]
    assert results == ["not run"] * 3 + ["done"] * 6


@pytest.mark.thorough
def test_a_cordon_of_an_administrator_stays(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    state = json.loads(file.read_text())
    state["items"][2]["spec"]["unschedulable"] = True
    file.write_text(json.dumps(state))
    before = nodes()
    for report in (report_of(on("node3")), report_of(on())):
        act_on(report, "kubernetes", really=True, at_most=1, say=lambda _: None)
    assert nodes() == before


@pytest.mark.thorough
def test_nodes_come_back_before_others_are_drained(nodes: Callable[[], dict[str, Any]]) -> None:
    act_on(report_of(on("node5")), "kubernetes", really=True, at_most=0.05, say=lambda _: None)
    said: list[str] = []
    act_on(report_of(on("node3")), "kubernetes", really=True, at_most=0.05, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["resume node5"] * 3 + ["drain node3"] * 3
    assert [name for name, item in nodes().items() if item["spec"].get("taints")] == ["node3"]


@pytest.mark.thorough
def test_what_an_administrator_does_meanwhile_stays(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    """While node3 is drained, an administrator cordons node4."""
    file, log = tmp_path / "nodes.json", tmp_path / "act.log"
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        state = json.loads(file.read_text())
        state["items"][3]["spec"]["unschedulable"] = True
        file.write_text(json.dumps(state))

    act_on(report_of(on("node3", "node4")), "kubernetes", really=True, at_most=1, say=say, log_file=log)
    assert nodes()["node4"]["spec"] == {"unschedulable": True} and nodes()["node3"]["spec"]["taints"]
    assert said[-1].startswith("node4 is not changed: ") and said[-1].endswith("is out of service: cordoned")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["node"] == "node4" and last["command"] == "" and last["result"].startswith("left: ")


@pytest.mark.thorough
def test_without_an_answer_nothing_is_changed(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{}")
    with pytest.raises(UsageError, match="nothing was changed"):
        act_on(report_of(on("node3")), "kubernetes", really=True, at_most=1, say=lambda _: None)
    (tmp_path / "bin" / "kubectl").unlink()
    with pytest.raises(UsageError, match="nothing was changed: `kubectl`"):
        act_on(report_of(on("node3")), "kubernetes", really=True, at_most=1, say=lambda _: None)


@pytest.mark.thorough
def test_the_real_kubectl_knows_every_option() -> None:
    """It gets as far as asking the server, which is not there."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    decisions = (Decision("node1", "drain", "preflight: GPU001 7 of 8"), Decision("node1", "resume", "it is over"))
    for decision in decisions:
        for command in Kubernetes().commands(decision):
            done = subprocess.run(
                [program, "--server=http://127.0.0.1:9", "--request-timeout=3s", *command[1:]],
                env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 1 and "refused" in done.stderr, done.stderr


# What Slurm says of its nodes, read from a stub of scontrol, also if a reason pretends to be another record.


MARK = "[root@2026-08-01T12:00:00]"


@pytest.mark.parametrize(
    ("lines", "standings"),
    [
        (f"State=IDLE+DRAIN Reason=bad cable {MARK}", {"n2": Standing(True, False, "bad cable")}),
        (f"State=IDLE Reason=bad cable {MARK}", {"n2": Standing(True)}),
        ("State=DOWN", {"n2": Standing(True, False)}),
        ("State=DOWN Reason=Not responding", {"n2": Standing(True, False, "Not responding")}),
        (
            f"State=DRAIN Reason=preflight: GPU001 {MARK} Comment=mine",
            {"n2": Standing(True, False, "preflight: GPU001")},
        ),
        # A forged record of n1 inside a reason of n2, and a second line of a reason.
        (
            f"State=IDLE+DRAIN Reason=preflight: NodeName=n1 State=IDLE Reason=preflight: GPU001 {MARK}",
            {"n2": Standing(True, False, "preflight: NodeName=n1 State=IDLE Reason=preflight: GPU001")},
        ),
        (
            f"State=IDLE+DRAIN Reason=bad cable [x@y] Reason=preflight: GPU001 {MARK}",
            {"n2": Standing(True, False, "bad cable [x@y] Reason=preflight: GPU001")},
        ),
        (
            f"State=DRAIN Reason=bad {MARK}\n   NodeName=n1 State=DRAIN Reason=preflight: GPU001",
            {"n2": Standing(True, False, "bad")},
        ),
    ],
)
def test_what_slurm_says(
    lines: str, standings: dict[str, Standing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answer").write_text(f"NodeName=n2 Arch=x86_64 OS=Linux 6.1 #1 SMP {lines}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nexec /bin/cat "{tmp_path}/answer"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert anyio.run(Slurm().standings) == standings
    assert anyio.run(Slurm().standing, "n2") == standings["n2"]
    assert not anyio.run(Slurm().standing, "n1").known


# Nodes of a real Slurm are drained and resumed.


#: A requirement that no machine has, and one that every machine has.
LACKING, MET = ("--expect", "cpus=100000"), ("--expect", "cpus>=1")


@pytest.fixture(scope="module")
def running() -> Iterator[RealSlurm]:
    """Slurm over two nodes, with preflight as /srv/preflight on the head."""
    require_virtual_nodes()
    require_slurm()
    with Cluster(2) as cluster:
        put(cluster.head, "/srv/preflight", COMMAND, 0o755)
        with slurm(cluster) as started:
            yield started


def preflight(running: RealSlurm, *options: str) -> tuple[int, str]:
    """Check node1, and act on Slurm's nodes. The agent runs on the head: its facts do not matter here."""
    command = ["/srv/preflight", "nodes", "--on", "local", "--hosts", "node1", "--until", "node", "--no-config", "-q"]
    done = running.cluster.head.run(
        [*command, "--select", "NOD", "--act-on", "slurm", "--act-log", "/run/act.log", *options], timeout=150
    )
    return done.returncode, done.stderr


def node1(running: RealSlurm) -> str:
    """What Slurm says of node1."""
    return running.control("show", "node", "node1", "--oneliner")


@pytest.mark.thorough
def test_slurm_drains_and_resumes(running: RealSlurm) -> None:
    everything = ("--act", "--act-at-most", "100%")
    code, said = preflight(running, *LACKING, "--act-at-most", "100%")
    assert code == 1 and "scontrol update nodename=node1 state=drain 'reason=preflight: NOD005 " in said
    assert "--act runs them" in said and "DRAIN" not in node1(running)
    code, said = preflight(running, *LACKING, "--act")
    assert code == 2 and "no node was drained" in said and "DRAIN" not in node1(running)
    try:
        code, said = preflight(running, *LACKING, *everything)
        assert code == 1 and "drain node1: preflight: NOD005" in said, said
        assert "DRAIN" in node1(running) and "Reason=preflight: NOD005 " in node1(running)
        # Could-not-tell, a run without that check, and a fault that lasts: the node stays as it is.
        for options in (("--golden", "other"), (), LACKING):
            preflight(running, *options, *everything)
            assert "Reason=preflight: NOD005 " in node1(running), options
        code, said = preflight(running, *MET, *everything)
        assert code == 0 and "resume node1" in said and "DRAIN" not in node1(running)
        running.control("update", "nodename=node1", "state=drain", "reason=bad cable")
        for options in (LACKING, MET):
            preflight(running, *options, *everything)
            assert "Reason=bad cable" in node1(running)
    finally:
        running.control("update", "nodename=node1", "state=resume")
    log = [json.loads(line) for line in running.cluster.head.path("/run/act.log").read_text().splitlines()]
    assert [(line["action"], line["result"]) for line in log] == [
        ("drain", "not run"),
        ("drain", "done"),
        ("resume", "done"),
    ]
