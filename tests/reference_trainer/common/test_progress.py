"""The progress reports of a rank."""

from __future__ import annotations

from typing import Any

from preflight.agent import rank_events
from reference_trainer.common.progress import Progress


def test_collectives_are_numbered_and_the_counter_only_rises() -> None:
    said: list[dict[str, Any]] = []
    progress = Progress(said.append, rank=3)
    progress.reached(rank_events.STARTED, pid=1)
    progress.entering("import", loading=True)
    progress.left()
    for what in ("sum", "broadcast"):
        progress.entering(what, collective=True)
        progress.left(collective=True)
    assert [e.get("collective") for e in said] == [None, None, None, 1, 1, 2, 2]
    progress = [e["progress"] for e in said]
    assert progress == sorted(set(progress))
    assert said[1]["loading"] is True


def test_short_steps_are_counted_but_not_reported_individually() -> None:
    said: list[dict[str, Any]] = []
    progress = Progress(said.append, rank=0)
    for step in range(100):
        progress.entering(f"step {step}", collective=True, brief=True)
        progress.left(collective=True)
    progress.entering("sum", collective=True)
    assert len(said) < 50
    assert said[-1]["collective"] == 101
    entered = [e["what"] for e in said if e["event"] == rank_events.ENTERING]
    left = [e["what"] for e in said if e["event"] == rank_events.LEFT]
    assert entered[:-1] == left


def test_awaited_ranks_are_reported_only_on_change() -> None:
    said: list[dict[str, Any]] = []
    progress = Progress(said.append, rank=0)
    progress.entering("all ranks", waiting_for=[1, 2])
    for missing in ([1, 2], [2], [2], []):
        progress.waits_for(missing)
    assert [e["waiting_for"] for e in said] == [[1, 2], [2], []]
    assert [e.get("again", False) for e in said] == [False, True, True]


def test_heartbeats_do_not_advance_progress() -> None:
    said: list[dict[str, Any]] = []
    progress = Progress(said.append, rank=0)
    progress.entering("sum", collective=True)
    progress._quit.wait = lambda timeout: len(said) > 3  # type: ignore[method-assign]
    progress.start()
    progress.stop()
    beats = [e for e in said if e["event"] == rank_events.BEAT]
    assert len(beats) == 3
    assert {(b["progress"], b["what"], b["collective"], b["inside"]) for b in beats} == {(1, "sum", 1, True)}
