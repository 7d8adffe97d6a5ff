"""Whoever dies, nothing is left on the node: the head, the agent, its guardian, or the head's word.

The head is a process of its own here, with two agents and one stubborn rank on each: it ignores SIGTERM and has
descendants in sessions of their own, one of them an orphan. Nobody may be left 5 s after the end of any of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from preflight.node.process import descendants, stat_of

ROOT = Path(__file__).parents[2]
HEAD = """
import sys
import anyio
from preflight.executors.local import LocalExecutor
from preflight.fleet import open_fleet
from preflight.node.wire import Ask, Context
from preflight.recording import Node

async def main():
    extra = (("shipped.probes", open(sys.argv[1]).read()),)
    async with open_fleet(LocalExecutor(), [Node("a", 0), Node("b", 1)], extra=extra) as fleet:
        running = []
        for session in fleet.sessions.values():
            def told(event, name=session.node.name, agent=session.ready.pid):
                if "pid" in event.data and event.origin == "child":
                    print("rank", name, agent, event.data["pid"], flush=True)
            running.append(session.start(Ask(0, "shipped.probes:stubborn", {}, 60.0, Context(sys.executable)), told))
        for one in running:
            print("answer", repr(await one.result()), flush=True)

anyio.run(main)
"""
#: Two nodes, each with guardian, agent, rank, loader, and the daemon's daemon.
PROCESSES = 10
Gone = Callable[[list[int], float], list[int]]


@dataclass
class Head:
    """A head under way: its process, and all that stands below it by pid."""

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
        until = time.monotonic() + 10
        while len(below := descendants(process.pid)) < PROCESSES and time.monotonic() < until:
            time.sleep(0.02)
        assert len(below) >= PROCESSES, below
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
def test_nothing_outlives_a_killed_agent_and_its_node_is_named(head: Head, gone_within: Gone, who: str) -> None:
    guardian, agent = head.guardian, head.agent
    mine = [guardian, *descendants(guardian)]
    os.kill({"agent": agent, "guardian": guardian}[who], signal.SIGKILL)
    assert gone_within(mine, 5.0) == []
    answer = head.output.readline()
    assert "kind='unreachable'" in answer and "a was lost" in answer
    others = [pid for pid in head.below if pid not in mine]
    assert gone_within(others, 0.0) == others


def test_a_stopped_agent_is_lost_within_its_lease(head: Head, gone_within: Gone) -> None:
    began = time.monotonic()
    mine = [head.guardian, *descendants(head.guardian)]
    os.kill(head.agent, signal.SIGSTOP)
    answer = head.output.readline()
    assert time.monotonic() - began < 5
    assert "kind='unreachable'" in answer and ("silent for" in answer or "stopped or stuck" in answer)
    assert gone_within(mine, 5.0) == []
