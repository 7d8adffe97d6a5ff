"""No process is left on a node after the head, an agent, a guardian or the connection dies.

The head is a separate process here, with two agents and one stubborn rank on each: it ignores SIGTERM and has
descendants in their own sessions, one of them an orphan. No process may be left 5 s later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from preflight.agent.process import descendants, stat_of
from tests.waiting import until

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
HEAD = """
import sys
import anyio
from preflight.executors.pipe import LocalExecutor
from preflight.runner.fleet import open_fleet
from preflight.agent.wire import AgentRequest, Context
from preflight.model.recording import Node

async def main():
    extra = (("shipped.probes", open(sys.argv[1]).read()),)
    async with open_fleet(LocalExecutor(), [Node("a", 0), Node("b", 1)], extra=extra) as fleet:
        running = []
        for session in fleet.sessions.values():
            def on_event(event, name=session.node.name, agent=session.ready.pid):
                if "pid" in event.data and event.origin == "child":
                    print("rank", name, agent, event.data["pid"], flush=True)
            request = AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, Context(sys.executable))
            running.append(session.start(request, on_event))
        for one in running:
            print("answer", repr(await one.result()), flush=True)

anyio.run(main)
"""
#: Two nodes, each with guardian, agent, rank, loader, and the daemon's daemon.
PROCESSES = 10
Gone = Callable[[list[int], float], list[int]]


@dataclass
class Head:
    """A running head: its process, and all processes below it by pid."""

    process: subprocess.Popen[str]
    output: IO[str]
    below: list[int]
    agent: int

    @property
    def guardian(self) -> int:
        """The parent of the first agent."""
        stat = stat_of(self.agent)
        assert stat is not None
        return stat.parent


@pytest.fixture
def head() -> Iterator[Head]:
    paths = [ROOT, ROOT / "checks", ROOT / "rules", Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(Path(__file__).parent / "shipped" / "probes.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split() for _ in range(2)]
        assert [words[0] for words in lines] == ["rank", "rank"], lines
        until(lambda: len(descendants(process.pid)) >= PROCESSES)
        below = descendants(process.pid)
        agent = next(int(words[2]) for words in lines if words[1] == "a")
        yield Head(process, process.stdout, below, agent)
    finally:
        process.kill()
        process.wait(timeout=5)
        process.stdout.close()


def test_nothing_outlives_a_killed_head(head: Head, gone_within: Gone) -> None:
    head.process.kill()
    assert gone_within(head.below, 5.0) == []


def test_nothing_outlives_an_interrupted_head(head: Head, gone_within: Gone) -> None:
    head.process.send_signal(signal.SIGINT)
    assert gone_within(head.below, 5.0) == []


def test_nothing_outlives_a_silent_head(head: Head, gone_within: Gone) -> None:
    head.process.send_signal(signal.SIGSTOP)
    assert gone_within(head.below, 5.0) == []


@pytest.mark.parametrize("who", ["agent", "guardian"])
def test_nothing_outlives_a_killed_agent_and_its_node_is_reported(head: Head, gone_within: Gone, who: str) -> None:
    guardian, agent = head.guardian, head.agent
    mine = [guardian, *descendants(guardian)]
    others = [pid for pid in head.below if pid not in mine]
    os.kill({"agent": agent, "guardian": guardian}[who], signal.SIGKILL)
    assert gone_within(mine, 5.0) == []
    answer = head.output.readline()
    assert "kind='unreachable'" in answer and "a was lost" in answer
    # On a loaded machine a short-lived helper of the start may be among them in place of one that starts later.
    assert len(gone_within(others, 0.0)) >= PROCESSES // 2 - 1


def test_a_stopped_agent_is_lost_with_its_lease(head: Head, gone_within: Gone) -> None:
    mine = [head.guardian, *descendants(head.guardian)]
    os.kill(head.agent, signal.SIGSTOP)
    answer = head.output.readline()
    assert "kind='unreachable'" in answer and ("silent for" in answer or "stopped or stuck" in answer)
    assert gone_within(mine, 5.0) == []
