"""Threads of one server take turns, and only the holder releases the lock."""

from __future__ import annotations

import threading

from reference_trainer.ps.frames import FairLock, NoLock, Released


def _elsewhere(turn: FairLock) -> bool:
    """Whether another thread can acquire it now."""
    thread = threading.Thread(target=lambda: (turn.acquire(), turn.release()), daemon=True)
    thread.start()
    thread.join(0.05)
    return not thread.is_alive()


def test_released_work_runs_beside_other_threads() -> None:
    turn = FairLock()
    turn.acquire()
    with Released(turn):
        assert _elsewhere(turn)
    assert not _elsewhere(turn)
    assert turn.release()
    assert _elsewhere(turn)


def test_thread_without_the_lock_does_not_release_it() -> None:
    turn, held = FairLock(), []
    turn.acquire()

    def other() -> None:
        held.append(turn.release())
        with Released(turn):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert held == [False]
    assert not _elsewhere(turn)


def test_exception_in_released_work_restores_the_lock() -> None:
    turn = FairLock()
    turn.acquire()
    try:
        with Released(turn):
            raise ValueError
    except ValueError:
        assert turn.release()


def test_no_lock_never_waits() -> None:
    alone = NoLock()
    alone.acquire()
    alone.acquire()
    assert not alone.release()
