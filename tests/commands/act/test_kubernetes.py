"""Nodes of Kubernetes are tainted and freed, with a stub of kubectl."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight._util.usage_error import UsageError
from preflight.commands.drain import KUBERNETES_CONDITION, KUBERNETES_KEY, Decision, Kubernetes, act_on
from tests.commands.act.test_decisions import NAMES, on, report_of

pytestmark = pytest.mark.thorough

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


def test_a_cordon_of_an_administrator_stays(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    state = json.loads(file.read_text())
    state["items"][2]["spec"]["unschedulable"] = True
    file.write_text(json.dumps(state))
    before = nodes()
    for report in (report_of(on("node3")), report_of(on())):
        act_on(report, "kubernetes", really=True, at_most=1, say=lambda _: None)
    assert nodes() == before


def test_nodes_come_back_before_others_are_drained(nodes: Callable[[], dict[str, Any]]) -> None:
    act_on(report_of(on("node5")), "kubernetes", really=True, at_most=0.05, say=lambda _: None)
    said: list[str] = []
    act_on(report_of(on("node3")), "kubernetes", really=True, at_most=0.05, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["resume node5"] * 3 + ["drain node3"] * 3
    assert [name for name, item in nodes().items() if item["spec"].get("taints")] == ["node3"]


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
    assert said[-1].startswith("node4 is left as it is: ") and said[-1].endswith("is out of service: cordoned")
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["node"] == "node4" and last["command"] == "" and last["result"].startswith("left: ")


def test_without_an_answer_nothing_is_changed(nodes: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{}")
    with pytest.raises(UsageError, match="nothing was changed"):
        act_on(report_of(on("node3")), "kubernetes", really=True, at_most=1, say=lambda _: None)
    (tmp_path / "bin" / "kubectl").unlink()
    with pytest.raises(UsageError, match="nothing was changed: `kubectl`"):
        act_on(report_of(on("node3")), "kubernetes", really=True, at_most=1, say=lambda _: None)


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
