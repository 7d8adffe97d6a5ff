"""What a rank tells of itself."""

from __future__ import annotations

from typing import Any

from reference_trainer import phases
from reference_trainer.progress import Progress


def test_collectives_are_numbered_and_the_counter_only_rises() -> None:
    said: list[dict[str, Any]] = []
    me = Progress(said.append, rank=3)
    me.reached(phases.STARTED, pid=1)
    me.entering("import", loading=True)
    me.left()
    for what in ("sum", "broadcast"):
        me.entering(what, collective=True)
        me.left(collective=True)
    assert [e.get("collective") for e in said] == [None, None, None, 1, 1, 2, 2]
    progress = [e["progress"] for e in said]
    assert progress == sorted(set(progress))
    assert said[1]["loading"] is True


def test_short_steps_are_not_told_one_by_one_but_counted() -> None:
    said: list[dict[str, Any]] = []
    me = Progress(said.append, rank=0)
    for step in range(100):
        me.entering(f"step {step}", collective=True, brief=True)
        me.left(collective=True)
    me.entering("sum", collective=True)
    assert len(said) < 50
    assert said[-1]["collective"] == 101
    entered = [e["what"] for e in said if e["event"] == phases.ENTERING]
    left = [e["what"] for e in said if e["event"] == phases.LEFT]
    assert entered[:-1] == left


def test_whom_a_wait_is_for_is_told_only_when_it_changes() -> None:
    said: list[dict[str, Any]] = []
    me = Progress(said.append, rank=0)
    me.entering("all ranks", waiting_for=[1, 2])
    for missing in ([1, 2], [2], [2], []):
        me.waits_for(missing)
    assert [e["waiting_for"] for e in said] == [[1, 2], [2], []]
    assert [e.get("again", False) for e in said] == [False, True, True]


def test_a_beating_heart_does_not_move_progress() -> None:
    said: list[dict[str, Any]] = []
    me = Progress(said.append, rank=0)
    me.entering("sum", collective=True)
    me._quit.wait = lambda timeout: len(said) > 3  # type: ignore[method-assign]
    me.start()
    me.stop()
    beats = [e for e in said if e["event"] == phases.BEAT]
    assert len(beats) == 3
    assert {(b["progress"], b["what"], b["collective"], b["inside"]) for b in beats} == {(1, "sum", 1, True)}
