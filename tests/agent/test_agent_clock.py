"""The lease of the head, with a clock that the test turns: an agent that hears nothing ends in time, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from preflight.agent import agent as module
from preflight.agent.agent import WATCH_S, Agent
from preflight.agent.wire import LEASE_S


class Turned:
    """An agent, and the clock by which it lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fd_in: int, fd_out: int) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: self.now_s))
        self.agent = Agent(b"", fd_in, fd_out)
        self.agent._selector = SimpleNamespace(select=self._select)  # type: ignore[assignment]
        self.step_s = WATCH_S

    def _select(self, timeout_s: float) -> list[object]:
        self.now_s += self.step_s
        return []

    def run(self, seconds: float) -> str:
        """Let so many seconds pass, or fewer if the agent ends; the reason of its end."""
        ends = self.now_s + seconds
        while self.now_s < ends and not self.agent._end_reason:
            self.agent._step()
        return self.agent._end_reason


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turned]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        yield Turned(monkeypatch, reading, writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_an_agent_that_hears_nothing_ends_after_its_lease(turned: Turned) -> None:
    began = turned.now_s
    assert turned.run(LEASE_S) == ""
    assert "for 3.0 s" in turned.run(10 * LEASE_S)
    assert LEASE_S < turned.now_s - began <= LEASE_S + 2 * WATCH_S


def test_a_word_of_the_head_renews_the_lease(turned: Turned) -> None:
    for _ in range(5):
        assert turned.run(LEASE_S - WATCH_S) == ""
        turned.agent._last_frame_s = turned.now_s
    assert turned.run(2 * LEASE_S) != ""


def test_time_in_which_the_agent_itself_stood_still_does_not_count(turned: Turned) -> None:
    turned.step_s = 60.0
    turned.agent._step()
    turned.step_s = WATCH_S
    assert turned.run(LEASE_S / 2) == ""
