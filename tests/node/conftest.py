"""Agents under test run here, through the local executor, with `shipped` beside our own modules."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from preflight.executors.local import LocalExecutor
from preflight.fleet import open_fleet
from preflight.recording import Node
from preflight.session import AgentSession

#: What is shipped beside our own, as modules with their sources.
SHIPPED = (("shipped.probes", (Path(__file__).parent / "shipped" / "probes.py").read_text()),)
T = TypeVar("T")
WithSession = Callable[..., Any]


@pytest.fixture
def with_session(monkeypatch: pytest.MonkeyPatch) -> WithSession:
    """Run a coroutine function with the session of a fresh agent on this machine."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(use: Callable[[AgentSession], Awaitable[T]], *, executor: LocalExecutor | None = None) -> T:
        async def main() -> T:
            nodes = [Node("node1", 0)]
            async with open_fleet(executor or LocalExecutor(), nodes, extra=SHIPPED) as fleet:
                assert fleet.records[0].problem == ""
                return await use(fleet.sessions["node1"])

        return anyio.run(main)

    return run


def is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.fixture
def gone_within() -> Callable[[list[int], float], list[int]]:
    """Wait for processes to end; those that have not by the deadline."""

    def wait(pids: list[int], deadline_s: float) -> list[int]:
        until = time.monotonic() + deadline_s
        left = list(pids)
        while left and time.monotonic() < until:
            time.sleep(0.02)
            left = [pid for pid in left if not is_gone(pid)]
        return left

    return wait
