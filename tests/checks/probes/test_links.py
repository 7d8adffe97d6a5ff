"""Dialling and listening over loopback: every way a connection can end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from preflight_checks.probes.links import Target, dial, listen

TOKEN = "0" * 32


@contextlib.contextmanager
def listening(*ports: int) -> Iterator[dict[str, Any]]:
    """A listener as the agent runs it; yields its event."""
    said: list[dict[str, Any]] = []
    heard = threading.Event()

    def emit(event: dict[str, Any]) -> None:
        said.append(event)
        heard.set()

    thread = threading.Thread(target=listen, args=({"ports": list(ports), "lifetime_s": 6.0}, emit), daemon=True)
    thread.start()
    assert heard.wait(5)
    yield said[0]


@contextlib.contextmanager
def stranger(serve: Callable[[socket.socket], None] | None) -> Iterator[int]:
    """Another program on a port: `serve` handles one connection, None never accepts any."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if serve is not None:
            handle = serve

            def run() -> None:
                with contextlib.suppress(OSError):
                    accepted, _ = listener.accept()
                    with accepted:
                        handle(accepted)

            threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fake(port: int) -> dict[str, Any]:
    """What a listener would have said that is not the one on `port`."""
    return {"listening": {"token": TOKEN, "ephemeral": port, "ports": {}}}


def dialled(port: int, event: dict[str, Any], host: str = "127.0.0.1", **more: Any) -> Target:
    params = {"targets": [{"label": "it", "host": host, "port": port}], "listening": event, **more}
    (target,) = dial(params).targets
    return target


def test_a_listener_answers_on_its_ports_and_on_a_free_one() -> None:
    port = free_port()
    with listening(port) as event:
        targets = [
            {"label": "a", "host": "127.0.0.1", "port": 0},
            {"label": "b", "host": "localhost", "port": port},
        ]
        found = dial({"targets": targets, "listening": event}).targets
    assert [(t.label, t.status, t.arrived_bytes) for t in found] == [
        ("a", "ok", 1 << 20),
        ("b", "ok", 1 << 20),
    ]


def test_the_inner_part_of_the_event_will_do_too() -> None:
    with listening() as event:
        assert dialled(0, event["listening"]).status == "ok"


def test_only_the_small_message_is_sent_when_bulk_is_off() -> None:
    with listening() as event:
        assert dialled(0, event, bulk_bytes=0).arrived_bytes == 64


def test_a_port_that_is_taken_is_reported_and_the_rest_still_works() -> None:
    with stranger(None) as taken, listening(taken) as event:
        assert event["listening"]["ports"][str(taken)]
        found = dialled(taken, event)
        assert found.status == "unbound" and "in use" in found.detail
        assert dialled(0, event).status == "ok"


def test_nobody_listening_is_refused() -> None:
    found = dialled(0, fake(free_port()))
    assert found.status == "refused" and found.took_s < 1


def test_a_name_nobody_knows_is_unresolved() -> None:
    assert dialled(0, fake(1), host="does-not-exist.invalid").status == "unresolved"


def test_a_program_that_never_reads_is_silent() -> None:
    with stranger(None) as port:
        found = dialled(0, fake(port), connect_s=0.3)
    assert found.status == "silent" and found.took_s < 2


def test_a_full_backlog_gets_no_answer_and_counts_as_filtered() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for item in waiting:
                item.setblocking(False)
                item.connect_ex(("127.0.0.1", port))
            found = dialled(0, fake(port), connect_s=0.4)
        finally:
            for item in waiting:
                item.close()
    assert found.status == "filtered"


def test_another_program_that_answers_is_a_stranger() -> None:
    def http(stream: socket.socket) -> None:
        stream.recv(100)
        stream.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + b" " * 100)

    with stranger(http) as port:
        found = dialled(0, fake(port))
    assert found.status == "stranger" and "HTTP/1.1 400" in found.detail


def test_another_program_that_hangs_up_is_a_stranger() -> None:
    with stranger(lambda stream: stream.recv(1000) and None) as port:
        assert dialled(0, fake(port)).status == "stranger"


def test_the_listener_of_another_run_is_a_stranger() -> None:
    with listening() as event:
        other = fake(event["listening"]["ephemeral"])
        found = dialled(0, other)
    assert found.status == "stranger"


def greeted(then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    """A listener that greets properly and then does something else."""

    def serve(stream: socket.socket) -> None:
        stream.sendall(stream.recv(1000))
        then(stream)

    return serve


def test_small_payloads_that_arrive_and_large_ones_that_do_not() -> None:
    done = threading.Event()

    def lossy(stream: socket.socket) -> None:
        # Acknowledges what a path with an MTU of 1500 would let through, and then nothing more.
        for size in (64, 1200, 1400):
            left = 4 + size
            while left:
                left -= len(stream.recv(left))
            stream.sendall(size.to_bytes(4, "big"))
        done.wait(5)

    with stranger(greeted(lossy)) as port:
        found = dialled(0, fake(port), bulk_s=1.5)
    done.set()
    assert (found.status, found.arrived_bytes, found.lost_bytes) == ("stalled", 1400, 2000)
    assert found.took_s < 3


def test_a_transfer_that_still_moves_is_slow_not_stalled() -> None:
    stop = threading.Event()

    def trickle(stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for size in (64, 1200, 1400, 2000, 4000, 8000, 16000, 65536):
            left = 4 + size
            while left:
                left -= len(stream.recv(left))
            stream.sendall(size.to_bytes(4, "big"))
        while not stop.wait(0.02):
            if not stream.recv(8192):
                return

    with stranger(greeted(trickle)) as port:
        found = dialled(0, fake(port), bulk_s=1.3, bulk_bytes=8 << 20)
    stop.set()
    assert (found.status, found.lost_bytes) == ("slow", 8 << 20)


def test_a_stop_behind_full_frames_is_no_matter_of_their_size() -> None:
    done = threading.Event()

    def tired(stream: socket.socket) -> None:
        for size in (64, 1200, 1400, 2000, 4000, 8000, 16000):
            left = 4 + size
            while left:
                left -= len(stream.recv(left))
            stream.sendall(size.to_bytes(4, "big"))
        done.wait(5)

    with stranger(greeted(tired)) as port:
        found = dialled(0, fake(port), bulk_s=1.2)
    done.set()
    assert (found.status, found.arrived_bytes) == ("slow", 16000)


def test_a_reset_during_the_payload_says_so() -> None:
    def reset(stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with stranger(greeted(reset)) as port:
        assert dialled(0, fake(port)).status == "reset"


def test_strangers_get_nothing_from_our_listener() -> None:
    with listening() as event:
        with socket.create_connection(("127.0.0.1", event["listening"]["ephemeral"]), 2) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100)
            stream.settimeout(3)
            with contextlib.suppress(ConnectionResetError):
                assert stream.recv(100) == b""
        assert dialled(0, event).status == "ok"


def test_a_listener_ends_by_itself() -> None:
    ended = listen({"ports": [], "lifetime_s": 0.05}, lambda event: None)
    assert ended.connections == 0


@pytest.mark.parametrize("count", [8])
def test_targets_are_dialled_at_once(count: int) -> None:
    with stranger(None) as port:
        targets = [{"label": str(i), "host": "127.0.0.1", "port": 0} for i in range(count)]
        began = time.monotonic()
        found = dial({"targets": targets, "listening": fake(port), "connect_s": 0.4}).targets
    assert time.monotonic() - began < 1.5
    assert [item.label for item in found] == [str(i) for i in range(count)]
