"""Waits for another process are reported while they last: supervision follows them to their cause."""

from __future__ import annotations

import socket
import threading

from reference_trainer.ps import frames
from reference_trainer.ps.frames import Channel, Header

LIMIT_S = 30.0


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of one connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        return here, listener.accept()[0]


def test_wait_is_reported_at_its_start_and_end() -> None:
    here, there = connected()
    lasting = threading.Event()
    told: list[bool] = []
    with here, there:
        answering = Channel(there, peer="worker", limit_s=LIMIT_S)
        waiting = Channel(here, peer="server", limit_s=LIMIT_S)

        def on_wait_change(lasts: bool) -> None:
            told.append(lasts)
            lasting.set()

        def answer() -> None:
            # The awaited data is sent only once the wait was reported.
            if lasting.wait(LIMIT_S):
                answering.send(Header(frames.BARRIER, 0, 1))

        waiting.on_wait_change = on_wait_change
        thread = threading.Thread(target=answer)
        thread.start()
        header = waiting.receive()
        thread.join(LIMIT_S)
    assert header.op == frames.BARRIER
    assert told == [True, False] and not waiting.kept_waiting


def test_immediate_data_is_not_a_wait() -> None:
    here, there = connected()
    told: list[bool] = []
    with here, there:
        Channel(there, peer="worker", limit_s=LIMIT_S).send(Header(frames.BARRIER, 0, 1))
        waiting = Channel(here, peer="server", limit_s=LIMIT_S)
        waiting.on_wait_change = told.append
        assert waiting.receive().op == frames.BARRIER
    assert told == []
