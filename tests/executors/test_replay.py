"""Replay of a recorded cluster: the verdict is repeated, and unrecorded facts are reported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.agent.wire import AgentRequest, Done, Failed
from preflight.engine.report import Report
from preflight.executors.base import ExecutorError, NodeRequest
from preflight.executors.replay import ReplayExecutor
from preflight.model.configuration import RunOptions
from preflight.model.recording import (
    Cluster,
    ClusterNode,
    EventRecord,
    FactRecord,
    Node,
    NodeRecord,
    Origin,
    Recording,
    Unavailable,
)
from preflight.model.recording_io import load, save
from preflight.model.requests import Request
from preflight.runner.session import open_fleet
from tests.executors.trial import no_bundle
from tests.waiting import becomes

JOB = """\
#!/usr/bin/env bash
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=node1 --master_port=29500 train.py
"""
SCRIPT = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"

NODES = (
    NodeRecord(Node("a", 0, "10.0.0.1"), host="a", python="3.11.7", clock_offset_s=7.5, round_trip_s=0.01),
    NodeRecord(Node("b", 1), "b: nothing listens on its ssh port", "unreachable", notes=("all of it",)),
    NodeRecord(Node("c", 2), host="c"),
)
FACTS = (
    FactRecord(Request("probes:size", "a", {"path": "/dev/shm"}), {"bytes": 5}),
    FactRecord(Request("probes:size", "c", {"path": "/x"}), None, Unavailable("denied", "no", "all", 3)),
    FactRecord(Request("links:listen", "c"), {"port": 4242}),
    FactRecord(Request("links:dial", "a", {"port": 1}, peers=("c",), listen="links:listen"), "to c"),
    FactRecord(Request("links:dial", "a", {"port": 1}, peers=("d", "c"), listen="links:listen"), "to both"),
)
RECORDING = Recording((), "2026-01-01T00:00:00+00:00", "0.1", verb="check", executor="ssh", nodes=NODES, facts=FACTS)


def findings(report: Report) -> list[tuple[str, str, str]]:
    return [(finding.id, finding.severity.value, finding.message) for finding in report.findings]


def test_check_of_a_recording_repeats_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = RunOptions(executor="local", until="link", trust_job=True, python=sys.executable, open_deadline=30)
    first, report = api.check([tmp_path / "run.sh"], options, root=tmp_path)
    assert len(first.nodes) == 2 and len([fact for fact in first.facts if fact.unavailable is None]) > 10
    assert any(fact.request.peers for fact in first.facts)
    (tmp_path / "yesterday.json").write_bytes(save(first))
    told = (f"recording={tmp_path / 'yesterday.json'}",)
    again = replace(options, executor="replay", executor_options=told)
    second, replayed = api.check([tmp_path / "run.sh"], again, root=tmp_path)
    assert replayed.verdict is report.verdict and replayed.exit_code == report.exit_code
    assert findings(replayed) == findings(report) == findings(api.judge(tmp_path / "yesterday.json"))
    then = {fact.request.key: (fact.value, fact.unavailable) for fact in first.facts}
    now = {fact.request.key: (fact.value, fact.unavailable) for fact in load(save(second)).facts}
    assert now == then
    assert second.executor == "replay" and second.origin is not None
    assert second.origin.because == "--on replay"


def opened(recording: Recording = RECORDING) -> ReplayExecutor:
    return ReplayExecutor(recording, "run.json")


def test_only_recorded_facts_are_answered() -> None:
    async def main() -> None:
        chosen = opened()
        gathered = await chosen.gather(NodeRequest())
        assert gathered is not None and [node.name for node in gathered.nodes] == ["a", "b", "c"]
        async with open_fleet(chosen, gathered.nodes) as fleet:
            a, b, _ = fleet.records
            assert (a.host, a.python, a.problem) == ("a", "3.11.7", "")
            assert a.clock_offset_s == pytest.approx(7.5, abs=0.02)
            assert a.round_trip_s == pytest.approx(0.01, abs=0.02)
            assert (b.problem, b.problem_kind, b.notes) == (NODES[1].problem, "unreachable", ("all of it",))
            one, three = fleet.sessions["a"], fleet.sessions["c"]
            assert await one.request("probes:size", {"path": "/dev/shm"}) == Done(1, {"bytes": 5})
            answer = await one.request("probes:size", {"path": "/"})
            assert isinstance(answer, Failed) and answer.kind == "blocked"
            assert answer.reason.startswith("not recorded") and "probes:size was not requested from a" in answer.reason
            answer = await three.request("probes:size", {"path": "/x"})
            assert isinstance(answer, Failed)
            assert (answer.kind, answer.reason, answer.detail, answer.exit_code) == ("denied", "no", "all", 3)
            # A listener reports itself and keeps running; requests that differ only in their peers are distinguished.
            heard: list[object] = []
            listening = three.start(AgentRequest(0, "links:listen", {}, 30.0), lambda event: heard.append(event.data))
            await becomes(lambda: heard)
            assert heard == [{"listening": {"port": 4242}}] and listening.answer is None
            listening.cancel()
            params = {"port": 1, "listening": {"c": {"port": 4242}}, "unheard": {"d": "it is off"}}
            answer = await one.request("links:dial", params)
            assert isinstance(answer, Done) and answer.value == "to both"
            answer = await one.request("links:dial", {**params, "unheard": {}})
            assert isinstance(answer, Done) and answer.value == "to c"

    anyio.run(main)


def test_cancelled_rank_is_replayed_until_it_is_cancelled() -> None:
    request = Request("smoke:rank", "a", {"rank": 0, "steps": 3}, group="smoke")
    fact = FactRecord(request, None, Unavailable("cancelled", "it was cancelled"), 10.0, 20.0)
    said = EventRecord(request.key, "a", 10.1, "child", {"phase": "join"})
    judged = EventRecord(request.key, "a", 10.2, "head", {"event": "decided"})
    recording = replace(RECORDING, facts=(fact,), events=(judged, said))

    async def main() -> None:
        async with open_fleet(opened(recording), [Node("a", 0)]) as fleet:
            heard: list[object] = []
            session = fleet.sessions["a"]
            params = {"rank": 0, "steps": 9, "run_id": "x", "timeout_s": 3.0}
            running = session.start(AgentRequest(0, "smoke:rank", params, 60.0), lambda event: heard.append(event.data))
            await becomes(lambda: heard)
            assert running.answer is None
            running.cancel()
            answer = await running.result()
            assert isinstance(answer, Failed) and answer.kind == "cancelled"
            assert heard == [{"phase": "join"}]

    anyio.run(main)


def test_recorded_cluster_data_is_kept() -> None:
    cluster = Cluster("kubernetes", (ClusterNode("n1", {"cpu": 8.0}),))
    origin = Origin("hosts", "--hosts a,b,c")
    gathered = anyio.run(opened(replace(RECORDING, cluster=cluster, origin=origin)).gather, NodeRequest())
    assert gathered is not None and gathered.cluster == cluster and gathered.origin == origin


def test_run_without_nodes_repeats_its_reason() -> None:
    origin = Origin("executor", "slurm", problem="no node is free", problem_kind="blocked")
    with pytest.raises(ExecutorError, match="no node is free"):
        anyio.run(opened(replace(RECORDING, nodes=(), origin=origin)).gather, NodeRequest())
    with pytest.raises(ExecutorError, match="contains no nodes"):
        anyio.run(opened(replace(RECORDING, nodes=())).gather, NodeRequest())


def test_only_nodes_of_the_recording_can_be_named() -> None:
    gathered = anyio.run(opened().gather, NodeRequest(named_nodes=(Node("c", 0),)))
    assert gathered is not None and gathered.nodes == (Node("c", 0),)
    with pytest.raises(UsageError, match=r"z: not in the recording run\.json"):
        anyio.run(opened().gather, NodeRequest(named_nodes=(Node("z", 0),)))


@pytest.mark.parametrize("name", ["-x", "", "a b", "nowhere"])
def test_unrecorded_node_is_rejected(name: str) -> None:
    with pytest.raises(ExecutorError):
        anyio.run(lambda: opened().open(Node(name, 0), deadline_s=1.0, bundle=no_bundle))


@pytest.mark.parametrize(
    ("content", "words"), [(None, "name it with --on-option recording=FILE"), ("{}", "recording="), ("", "recording=")]
)
def test_invalid_recording_is_a_usage_error(tmp_path: Path, content: str | None, words: str) -> None:
    given = {}
    if content is not None:
        (tmp_path / "r.json").write_text(content)
        given = {"recording": str(tmp_path / "r.json")}
    with pytest.raises(UsageError, match=words):
        ReplayExecutor().configured(given)
