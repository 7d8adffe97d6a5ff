"""How long a guardian waits for an agent without heartbeats depends on the agent's state in the kernel."""

from __future__ import annotations

import os
import time

import pytest

from preflight.agent import guardian, process
from preflight.agent.process import Stat


@pytest.mark.parametrize(
    ("state", "leases"), [("T", 1), ("t", 1), ("R", guardian.MAX_MISSED_LEASES), ("D", guardian.MAX_MISSED_LEASES)]
)
def test_only_a_stopped_agent_is_lost_after_one_lease(monkeypatch: pytest.MonkeyPatch, state: str, leases: int) -> None:
    class Ended(Exception):
        pass

    def finish(why: str) -> None:
        raise Ended(why)

    monkeypatch.setattr(guardian, "LEASE_S", 0.1)
    monkeypatch.setattr(guardian, "_end_all", finish)
    monkeypatch.setattr(guardian.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(process, "stat_of", lambda pid: Stat(pid, 1, state, "python3", 0, 0))
    reading, writing = os.pipe()
    began = time.monotonic()
    try:
        with pytest.raises(Ended, match="stopped or stuck"):
            guardian._guard(os.getpid(), reading)
    finally:
        os.close(reading)
        os.close(writing)
    assert time.monotonic() - began >= 0.9 * leases * 0.1
