"""Agents under test run on this machine through the local executor, with the extra modules `shipped`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from preflight.executors.pipe import LocalExecutor
from preflight.model.recording import Node
from preflight.runner.session import AgentSession, open_fleet
from tests.processes import all_gone

#: The extra modules that are sent to agents, by name with their sources.
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


@pytest.fixture
def gone_within() -> Callable[[list[int], float], list[int]]:
    """Wait for processes to end; those that have not by the deadline."""
    return all_gone
