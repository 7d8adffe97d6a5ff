"""How long a guardian waits for an agent that gives no pulse: by what the kernel says of it."""

from __future__ import annotations

import os
import time

import pytest

from preflight.node import guardian, process
from preflight.node.process import Stat


@pytest.mark.parametrize(("state", "leases"), [("T", 1), ("t", 1), ("R", guardian.PATIENCE), ("D", guardian.PATIENCE)])
def test_only_a_stopped_agent_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch, state: str, leases: int) -> None:
    class Ended(Exception):
        pass

    def finish(why: str) -> None:
        raise Ended(why)

    monkeypatch.setattr(guardian, "LEASE_S", 0.1)
    monkeypatch.setattr(guardian, "_finish", finish)
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
