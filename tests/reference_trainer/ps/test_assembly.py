"""The handshake of a run: both sides report a contradiction, and strangers are rejected."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.ps import frames, handshake
from reference_trainer.ps.frames import Channel, Header, PeerError
from tests.ports import free_ports
from tests.reference_trainer.ps.conftest import Answers

pytestmark = pytest.mark.thorough

PushParts = Callable[..., Answers]
OTHER_MODEL = {"network": {"hidden": 96}}


def events_of(answer: dict[str, Any], event: str, **wanted: Any) -> list[dict[str, Any]]:
    """The events of this kind with these values."""
    return [
        e
        for e in answer["events"]
        if e["event"] == event and all(e.get(name) == value for name, value in wanted.items())
    ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"workers": 3}, "worker 1 on {host} has 3 as the number of workers; server 0 has 2"),
        ({"steps": 11}, "worker 1 on {host} has 11 as the number of steps; server 0 has 10"),
        ({"mode": "async"}, "has 'async' as the update mode; server 0 has 'sync'"),
        ({"policy": "hash"}, "has 'hash' as the placement policy; server 0 has 'size'"),
        ({"role": "trainer"}, "reports the role 'trainer'; expected server or worker"),
        ({"index": 2}, "has an invalid index; expected 0 to 1"),
        ({"index": 0}, "two processes claim to be worker 0"),
        ({"run_id": "another"}, "belongs to run 'another', server 0 to run 'test'"),
        ({"model": OTHER_MODEL}, "parameter 0 is hidden.weight [128, 80] here and hidden.weight [96, 80] there"),
        ({"slice_bytes": 2048}, "the same parameters, divided or assigned differently"),
    ],
)
def test_worker_with_another_configuration(parts: PushParts, wrong: dict[str, Any], sentence: str) -> None:
    answers = parts(1, 2, overrides={"worker 1": wrong})
    (server,) = answers.servers
    sentence = sentence.format(host=socket.gethostname())
    assert server["kind"] == "denied" and sentence in server["error"]
    told = [worker for worker in answers.workers if worker.get("kind") == "denied"]
    assert told and any(sentence in worker["error"] for worker in told)
    assert events_of(server, rank_events.PROBLEM, problem="mismatch") and any(
        events_of(worker, rank_events.PROBLEM, problem="mismatch") for worker in told
    )
    began = min(e["at_s"] for e in server["events"])
    assert events_of(server, rank_events.PROBLEM)[0]["at_s"] - began < 10, "long before any deadline"


def test_endpoints_in_another_order_are_noticed(parts: PushParts) -> None:
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(2)]
    wrong = {"worker 0": {"server_endpoints": endpoints[::-1]}}
    answers = parts(2, 1, server_endpoints=endpoints, overrides=wrong)
    assert any("as the list of server endpoints;" in error for error in answers.errors)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"endpoint": "127.0.0.9:1"}, "this server has endpoint 127.0.0.9:1, but its configuration has"),
        ({"index": 1}, "this server has index 1, but its configuration has 1 servers with 1 endpoints"),
        ({"role": "PSERVER"}, "this server has role PSERVER, but its configuration has server"),
    ],
)
def test_a_server_that_is_not_in_its_own_list(parts: PushParts, wrong: dict[str, Any], sentence: str) -> None:
    answers = parts(1, 1, overrides={"server 0": wrong, "worker 0": {"timeout_s": 1}})
    assert answers.servers[0]["kind"] == "denied" and answers.servers[0]["error"].startswith(sentence)
    assert events_of(answers.servers[0], rank_events.PROBLEM, problem="mismatch")
    assert answers.workers[0]["kind"] == "timeout" and "server 0" in answers.workers[0]["error"]


def test_missing_worker_is_named_everywhere(parts: PushParts) -> None:
    answers = parts(2, 3, absent=("worker 1",), timeout_s=1.5)
    for answer in (*answers.servers, *answers.workers):
        assert "workers 1 did not connect to server" in answer["error"]
        assert answer["kind"] == "blocked"
    assert all(events_of(server, rank_events.ENTERING, waiting_for=[3]) for server in answers.servers)


def test_missing_server_shows_in_the_connection_matrix(parts: PushParts) -> None:
    answers = parts(2, 2, absent=("server 1",), timeout_s=1.5)
    for worker in answers.workers:
        assert worker["kind"] == "timeout" and "cannot reach server 1 at 127.0.0.1:" in worker["error"]
        cells = {(e["server"], e["result"]) for e in events_of(worker, rank_events.DIAL)}
        assert (1, "refused") in cells and (0, "open") in cells
    assert all(e["to"] == e["server"] for worker in answers.workers for e in events_of(worker, rank_events.DIAL))


def test_port_in_use_is_reported_before_torch_is_imported(parts: PushParts) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        answers = parts(1, 1, server_endpoints=[f"127.0.0.1:{port}"], absent=("worker 0",))
    (server,) = answers.servers
    assert server["kind"] == "denied" and f"port {port}" in server["error"]
    assert events_of(server, rank_events.PROBLEM, problem="listen", result="in-use")
    assert not events_of(server, rank_events.ENTERING, what="import of torch")


def test_a_worker_with_another_secret_is_a_stranger(parts: PushParts) -> None:
    other = {"worker 1": {"secret": secrets.token_hex(32)}}
    answers = parts(1, 2, overrides=other, timeout_s=2)
    assert answers.workers[1]["kind"] == "denied"
    assert "does not know the secret of this run" in answers.workers[1]["error"]
    assert events_of(answers.workers[1], rank_events.DIAL)[-1]["result"] == "stranger"
    assert "workers 1 did not connect" in answers.servers[0]["error"]


def test_strangers_are_rejected_and_the_run_continues(parts: PushParts) -> None:
    (port,) = free_ports(1)
    heard: dict[str, bytes] = {}

    def knock(name: str, words: bytes) -> None:
        ends = time.monotonic() + 15
        while time.monotonic() < ends:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=15) as stranger:
                    stranger.sendall(words)
                    while data := stranger.recv(65536):
                        heard[name] = heard.get(name, b"") + data
                    return
            except ConnectionRefusedError:
                continue
            except OSError:
                return

    words = {
        "browser": b"GET / HTTP/1.1\r\nHost: node-a\r\nAccept: */*\r\n\r\n".ljust(frames.HEADER_BYTES),
        "protocol_error": frames.encode(Header(frames.PULL, worker=0)),
        "greedy": frames.encode(Header(frames.HELLO, bytes=1 << 39)),
        "liar": frames.encode(Header(frames.HELLO, bytes=100)) + bytes(100),
    }
    knocking = [threading.Thread(target=knock, args=item, daemon=True) for item in words.items()]
    for thread in knocking:
        thread.start()
    slow = {"server 0": {"injected_fault": {"kind": "delay", "seconds": 0.1}}}
    (server,), _ = parts(1, 2, server_endpoints=[f"127.0.0.1:{port}"], overrides=slow).reports
    for thread in knocking:
        thread.join(20)
    assert server["stranger_count"] == len(words), server["strangers"]
    why = " | ".join(stranger["why"] for stranger in server["strangers"])
    for sentence in ("GET / HTTP/1.1", "began with PULL", "began with HELLO", "does not know the secret"):
        assert sentence in why
    assert all(b"this port belongs to a smoke run of preflight" in answer for answer in heard.values())
    assert (server["violations"], server["mismatches"]) == ([], [])


def pair() -> tuple[Channel, Channel]:
    """Two connected channels."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    return Channel(left, peer="the server", limit_s=10), Channel(right, peer="the worker", limit_s=10)


def test_server_without_the_secret_is_rejected_by_the_worker() -> None:
    ours, theirs = pair()

    def pretend() -> None:
        theirs.send(Header(frames.CHALLENGE, bytes=32), memoryview(bytes(32)))
        header = theirs.receive()
        theirs.read_payload(memoryview(bytearray(header.bytes)))
        handshake.welcome(theirs, b"another secret, long enough", bytes(64), {"server": 0})

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(PeerError, match="does not know the secret") as caught:
        handshake.introduce(ours, b"the secret of this run, long", {"index": 0}, 10)
    thread.join(10)
    assert caught.value.kind == "protocol_error"
    ours.close()
    theirs.close()


def test_reply_of_another_program_is_quoted(parts: PushParts) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def greet() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.6p1 Debian\r\n".ljust(64))
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        answers = parts(1, 1, server_endpoints=[f"127.0.0.1:{port}"], absent=("server 0",))
        thread.join(10)
    assert answers.workers[0]["kind"] == "denied"
    assert "server 0 at" in answers.workers[0]["error"] and "SSH-2.0-OpenSSH" in answers.workers[0]["error"]
    assert events_of(answers.workers[0], rank_events.DIAL)[-1]["result"] == "stranger"


def test_program_that_accepts_and_stays_silent(parts: PushParts) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        absent = ("server 0",)
        answers = parts(1, 1, server_endpoints=[f"127.0.0.1:{port}"], absent=absent, least_limit_s=1, timeout_s=5)
    assert "accepted the connection and sent nothing" in answers.workers[0]["error"]
    assert events_of(answers.workers[0], rank_events.DIAL)[-1]["result"] == "silent"
