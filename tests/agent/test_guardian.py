"""How long a guardian waits for an agent without heartbeats depends on the agent's state in the kernel."""

from __future__ import annotations

import os
from types import SimpleNamespace

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

    waited: list[float] = []

    def silent(reading: object, writing: object, failing: object, timeout_s: float) -> tuple[list[int], ...]:
        waited.append(timeout_s)
        return [], [], []

    monkeypatch.setattr(guardian, "_end_all", finish)
    monkeypatch.setattr(guardian, "select", SimpleNamespace(select=silent))
    monkeypatch.setattr(guardian.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(process, "stat_of", lambda pid: Stat(pid, 1, state, "python3", 0, 0))
    with pytest.raises(Ended, match="stopped or stuck"):
        guardian._guard(os.getpid(), 0)
    assert sum(waited) == leases * guardian.LEASE_S
