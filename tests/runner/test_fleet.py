"""Many nodes at once: each answers or has a reason, and all agents have ended when the fleet is closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import pytest

from preflight.agent.process import stat_of
from preflight.agent.wire import LEASE_S, Done
from preflight.executors.base import Bundle, Channel, Executor, ExecutorError
from preflight.executors.pipe import LocalExecutor
from preflight.model.recording import Node, NodeRecord
from preflight.runner.fleet import KeepaliveThread, open_fleet
from preflight.runner.session import AgentSession


@dataclass
class SelectiveExecutor(Executor):
    """Reaches every node on this machine except those in `against`."""

    against: dict[str, Callable[[], None]]
    name: str = "choosy"
    closed: bool = False

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        if node.name in self.against:
            self.against[node.name]()
            await anyio.sleep_forever()
        return await LocalExecutor().open(node, deadline_s=deadline_s, bundle=bundle)

    async def aclose(self) -> None:
        self.closed = True


def refuse() -> None:
    raise ExecutorError("denied", "n1: no", "all of it")


@pytest.mark.thorough
def test_each_node_is_reached_or_has_a_reason() -> None:
    async def main() -> None:
        told: list[NodeRecord] = []
        executor = SelectiveExecutor({"n1": refuse, "n3": lambda: None})
        nodes = [Node(f"n{i}", i) for i in range(4)]
        async with open_fleet(executor, nodes, deadline_s=2.0, on_progress=told.append) as fleet:
            assert list(fleet.sessions) == ["n0", "n2"]
            assert [record.problem_kind for record in fleet.records] == ["", "denied", "", "timeout"]
            assert fleet.records[1].notes == ("all of it",)
            assert "waiting for choosy to reach it" in fleet.records[3].problem
            assert [node.name for node in fleet.snapshot().reached] == ["n0", "n2"]
            assert sorted(record.node.name for record in told) == ["n0", "n1", "n2", "n3"]
            assert isinstance(fleet.session("n0"), AgentSession)
            assert isinstance(fleet.session("n1"), NodeRecord)
            assert not executor.closed
        assert executor.closed

    anyio.run(main)


@pytest.mark.parametrize("error", [None, LookupError("mine")])
def test_agents_are_gone_when_the_fleet_is_left(error: Exception | None) -> None:
    pids: list[int] = []

    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node(f"n{i}", i) for i in range(8)]) as fleet:
            for session in fleet.sessions.values():
                assert session.ready is not None
                pids.append(session.ready.pid)
            assert len(pids) == 8 and all(stat_of(pid) for pid in pids)
            if error is not None:
                raise error

    if error is None:
        anyio.run(main)
    else:
        with pytest.raises(LookupError, match="mine"):
            anyio.run(main)
    assert [pid for pid in pids if stat_of(pid) is not None] == []


def test_a_cancelled_run_closes_its_fleet() -> None:
    async def main() -> list[int]:
        pids: list[int] = []
        with anyio.move_on_after(0.8):
            async with open_fleet(LocalExecutor(), [Node("n0", 0)]) as fleet:
                ready = fleet.sessions["n0"].ready
                assert ready is not None
                pids.append(ready.pid)
                await anyio.sleep_forever()
        return pids

    pids = anyio.run(main)
    assert pids and stat_of(pids[0]) is None


def test_a_missing_interpreter_is_named() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(interpreter="/no/python3"), [Node("n0", 0)]) as fleet:
            assert fleet.records[0].problem_kind == "missing"
            assert "`/no/python3` cannot be run" in fleet.records[0].problem

    anyio.run(main)


def test_events_of_one_node_do_not_wait_for_another() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n1", 1)]) as fleet:
            answers: dict[str, Done] = {}

            async def ask(name: str) -> None:
                answer = await fleet.sessions[name].request("json:dumps", {"name": name})
                assert isinstance(answer, Done)
                answers[name] = answer

            async with anyio.create_task_group() as group:
                for name in fleet.sessions:
                    group.start_soon(ask, name)
            assert {name: answer.value for name, answer in answers.items()} == {
                "n0": '{"name": "n0"}',
                "n1": '{"name": "n1"}',
            }

    anyio.run(main)


def test_two_nodes_with_the_same_name_are_an_error() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n0", 1)]):
            pass

    with pytest.raises(ValueError, match="share a name"):
        anyio.run(main)


@pytest.mark.thorough
def test_a_briefly_busy_head_keeps_its_agents() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n1", 1)]) as fleet:
            # This blocks the loop for longer than the agents' lease.
            time.sleep(LEASE_S + 1.5)
            for session in fleet.sessions.values():
                assert isinstance(await session.request("json:dumps", {}), Done)
            assert [record.problem for record in fleet.records] == ["", ""]

    anyio.run(main)


@pytest.mark.thorough
def test_a_stuck_head_loses_its_agents() -> None:
    spoken: list[bytes] = []
    keeper = KeepaliveThread(late_s=0.0, stuck_s=0.7)
    keeper.register("n0", spoken.append)
    keeper.start()
    time.sleep(1.8)
    keeper.stop()
    assert len(spoken) == 1
