"""Threads of one server take turns, and only whoever has the turn gives it up."""

from __future__ import annotations

import threading

from reference_trainer.ps.turns import Apart, NoTurn, Turn


def _elsewhere(turn: Turn) -> bool:
    """Whether another thread can have it now."""
    thread = threading.Thread(target=lambda: (turn.acquire(), turn.release()), daemon=True)
    thread.start()
    thread.join(0.05)
    return not thread.is_alive()


def test_one_thread_at_a_time_but_for_what_is_done_apart() -> None:
    turn = Turn()
    turn.acquire()
    with Apart(turn):
        assert _elsewhere(turn)
    assert not _elsewhere(turn)
    assert turn.release()
    assert _elsewhere(turn)


def test_a_thread_without_the_turn_neither_takes_it_away_nor_keeps_it() -> None:
    turn, held = Turn(), []
    turn.acquire()

    def other() -> None:
        held.append(turn.release())
        with Apart(turn):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert held == [False]
    assert not _elsewhere(turn)


def test_a_fault_apart_gives_the_turn_back_to_whoever_had_it() -> None:
    turn = Turn()
    turn.acquire()
    try:
        with Apart(turn):
            raise ValueError
    except ValueError:
        assert turn.release()


def test_nobody_waits_for_no_turn() -> None:
    alone = NoTurn()
    alone.acquire()
    alone.acquire()
    assert not alone.release()
