"""The handshake of a run: both sides report a contradiction, and strangers are rejected."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.agent import rank_events
from reference_trainer.ps import frames
from reference_trainer.ps import frames as handshake
from reference_trainer.ps.exact import PIECE
from reference_trainer.ps.frames import Channel, Header, PeerError
from tests.ports import free_ports
from tests.reference_trainer.ps.conftest import Answers
from tests.reference_trainer.ps.scripted_worker import ScriptedWorker
from tests.suite.effort import examples

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
        ({"workers": 3}, "worker 1 on {host} has 3 as the number of workers, but server 0 has 2"),
        ({"steps": 11}, "worker 1 on {host} has 11 as the number of steps, but server 0 has 10"),
        ({"mode": "async"}, "has 'async' as the update mode, but server 0 has 'sync'"),
        ({"policy": "hash"}, "has 'hash' as the placement policy, but server 0 has 'size'"),
        ({"role": "trainer"}, "reports the role 'trainer'; expected server or worker"),
        ({"index": 2}, "has an invalid index; expected 0 to 1"),
        ({"index": 0}, "two processes claim to be worker 0"),
        ({"run_id": "another"}, "belongs to run 'another', server 0 to run 'test'"),
        ({"model": OTHER_MODEL}, "parameter 0 is hidden.weight [128, 80] here, but hidden.weight [96, 80] there"),
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
    assert any("as the list of server endpoints, but" in error for error in answers.errors)


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
    assert "accepted the connection but sent nothing" in answers.workers[0]["error"]
    assert events_of(answers.workers[0], rank_events.DIAL)[-1]["result"] == "silent"


# An authenticated worker sends invalid requests: the server rejects it with a message and allocates nothing.


#: More than a piece of a push, and not a multiple of one.
LARGE = {"dense": [["a", [9 * PIECE + 3]]], "tables": []}


@pytest.mark.parametrize(
    ("header", "payload", "sentence"),
    [
        (Header(frames.PUSH, bytes=1 << 39), b"", "pushed 549755813888 bytes for a shard of 256"),
        (Header(frames.PUSH, shard=7, bytes=256), b"", "pushed shard 7 of 1"),
        (Header(frames.PUSH, bytes=128), bytes(128), "pushed 128 bytes for a shard of 256"),
        (Header(frames.LOOKUP, count=1 << 31, bytes=1 << 34), b"", "at most 10 are accepted"),
        (Header(frames.LOOKUP, shard=3), b"", "named table 3 of 1"),
        (Header(frames.LOOKUP, count=2, bytes=99), b"", "looked up 2 rows with 99 bytes"),
        (Header(frames.UPDATE, count=2, bytes=16), b"", "updated 2 rows of 4 numbers with 16 bytes"),
        (
            Header(frames.UPDATE, frames.SAME_ROWS, count=2, bytes=32),
            b"",
            "updated 2 rows without having looked them up",
        ),
        (
            Header(frames.LOOKUP, count=2, bytes=16),
            (5).to_bytes(8, "little") * 2,
            "not sorted, not distinct or not on this server",
        ),
        (
            Header(frames.LOOKUP, count=1, bytes=8),
            (10).to_bytes(8, "little"),
            "not sorted, not distinct or not on this server",
        ),
        (Header(frames.LOOKUP, count=1, bytes=8), b"\xff" * 8, "not sorted, not distinct or not on this server"),
        (Header(frames.PULL, bytes=8), b"", "sent a payload with PULL"),
        (Header(frames.PULL, clock=1 << 60), b"", "is at clock 1152921504606846976, but there are only 10 pushes"),
        (Header(frames.PUSH, clock=10, bytes=256), b"", "sent push 10, but there are only 10"),
        (Header(frames.DATA), b"", "sent DATA"),
        (Header(frames.BARRIER, phase=9), b"", "is at barrier 9, but the server is at 3"),
        (Header(frames.TAKEOVER), b"", "requested to replace worker 0"),
        (Header(frames.WAITING, bytes=1 << 30), b"", "sent a text of 1073741824 bytes"),
    ],
)
def test_invalid_request_is_rejected_with_a_message(header: Header, payload: bytes, sentence: str) -> None:
    scripted = ScriptedWorker()
    scripted.send(header, payload)
    assert sentence in scripted.ends()
    assert scripted.host.clocks.ended is not None and "worker 0 (node-b, process 7)" in scripted.host.clocks.ended.text


def test_invalid_bytes_are_rejected() -> None:
    scripted = ScriptedWorker()
    scripted.raw.send(b"x" * frames.HEADER_BYTES)
    assert "not the protocol of preflight" in scripted.ends()


def test_incomplete_push_changes_nothing() -> None:
    scripted = ScriptedWorker()
    before = scripted.host.store.dense.clone()
    scripted.send(Header(frames.UPDATE, count=0))
    scripted.send(Header(frames.PUSH, frames.LAST, bytes=256), b"\x01" * 100)
    scripted.close()
    assert scripted.host.store.dense.equal(before)
    assert scripted.host.clocks.clock == [0]
    assert scripted.host.clocks.ended is not None and "is gone" in scripted.host.clocks.ended.text


def test_incomplete_large_push_changes_nothing_with_backup_workers() -> None:
    scripted = ScriptedWorker(model=LARGE, spares=1)
    before = scripted.host.store.dense.clone()
    scripted.send(Header(frames.PUSH, frames.LAST, count=before.numel(), bytes=4 * before.numel()), b"\1" * (2 << 20))
    scripted.close()
    assert scripted.host.store.dense.equal(before)
    assert scripted.host.clocks.parts == [0] and 0 in scripted.host.vacant


def test_update_without_row_numbers_applies_to_the_last_lookup() -> None:
    scripted = ScriptedWorker()
    before = scripted.host.store.rows[0].clone()
    for row in (1, 7):
        scripted.send(Header(frames.LOOKUP, count=1, bytes=8), row.to_bytes(8, "little"))
        scripted.channel.read_payload(memoryview(bytearray(scripted.channel.receive().bytes)))
    one = bytes.fromhex("0000803f") * 4
    scripted.send(Header(frames.UPDATE, frames.SAME_ROWS | frames.DELTA, count=1, bytes=16), one)
    scripted.send(Header(frames.PUSH, frames.LAST, bytes=256), bytes(256))
    scripted.send(Header(frames.PULL, clock=1))
    scripted.channel.read_payload(memoryview(bytearray(scripted.channel.receive().bytes)))
    scripted.close()
    moved = (scripted.host.store.rows[0] != before).any(1).nonzero().flatten().tolist()
    assert moved == [7]


def test_lookup_allows_one_update_without_row_numbers() -> None:
    scripted = ScriptedWorker()
    scripted.send(Header(frames.LOOKUP, count=1, bytes=8), (3).to_bytes(8, "little"))
    scripted.channel.read_payload(memoryview(bytearray(scripted.channel.receive().bytes)))
    for clock in (0, 1):
        scripted.send(Header(frames.UPDATE, frames.SAME_ROWS, clock=clock, count=1, bytes=16), bytes(16))
        scripted.send(Header(frames.PUSH, frames.LAST, clock=clock, bytes=256), bytes(256))
    assert "updated 1 rows without having looked them up" in scripted.ends()


FIELDS: dict[str, Any] = {
    "op": st.sampled_from([frames.PULL, frames.PUSH, frames.PUSHPULL, frames.LOOKUP, frames.UPDATE, frames.BARRIER]),
    "flags": st.integers(0, 63),
    "worker": st.integers(0, 3),
    "clock": st.one_of(st.integers(-2, 5), st.integers(-(2**63), 2**63 - 1)),
    "shard": st.integers(0, 2),
    "count": st.integers(0, 12),
    "bytes": st.sampled_from([0, 8, 16, 24, 256, 1 << 33]),
    "phase": st.integers(0, 6),
}


@pytest.mark.parametrize("mode", ["sync", "async", "ssp", "geo"])
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=st.lists(st.builds(Header, **FIELDS), min_size=1, max_size=6), payload=st.binary(max_size=64))
def test_no_sequence_of_requests_crashes_a_server(mode: str, asked: list[Header], payload: bytes) -> None:
    scripted = ScriptedWorker(mode)
    sent = threading.Thread(target=_send_all, args=(scripted, asked, payload))
    sent.start()
    sent.join(20)
    scripted.close()
    ended = scripted.host.clocks.ended
    assert ended is not None and "failed" not in ended.text, ended.text


def _send_all(scripted: ScriptedWorker, asked: list[Header], payload: bytes) -> None:
    for header in asked:
        size = min(header.bytes, 256)
        try:
            scripted.send(header, (payload * size)[:size] if payload else bytes(size))
        except PeerError:
            return


# Every fault is found and attributed to its shard, element and process.


MODES = ("sync", "async", "ssp", "geo")
MODEL = {"dense": [["a", [30, 20]], ["b", [40]]], "tables": [["t", 211, 4]]}


def with_fault(parts: PushParts, member: str, fault: dict[str, Any], **params: Any) -> Answers:
    """A run of two servers and three workers, one of which injects a fault."""
    given = {"model": MODEL, "slice_bytes": 1024, "steps": 6, "geo_steps": 2, **params}
    return parts(2, 3, overrides={member: {"injected_fault": fault}}, **given)


def mismatches(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All mismatches in these reports."""
    return [mismatch for answer in answers for mismatch in answer["report"]["mismatches"]]


@pytest.mark.parametrize("mode", MODES)
def test_lost_push_is_attributed_to_worker_server_and_element(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "worker 1", {"kind": "loss", "server": 1, "step": 1}, mode=mode)
    servers, workers = answers.reports
    assert servers[0]["violations"] == []
    assert servers[1]["violations"] == ["push 1 of worker 1 to server 1 (exact phase) never came"]
    for worker in workers:
        wrong = [m for m in worker["mismatches"] if "shard" in m["operation"]]
        assert wrong and all("server 1" in m["operation"] for m in worker["mismatches"])
        assert wrong[0]["contributions"] == {"1": 0}
        assert "element " in wrong[0]["explanation"] and "worker 1" in wrong[0]["explanation"]
        rows = [m for m in worker["mismatches"] if m["operation"].startswith("rows ")]
        assert rows and "of table t: " in rows[0]["explanation"]


@pytest.mark.parametrize("mode", MODES)
def test_duplicate_push_is_applied_once(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "worker 2", {"kind": "double", "server": 0, "step": 1}, mode=mode)
    servers, _ = answers.reports
    assert servers[1]["violations"] == []
    assert servers[0]["violations"] and all("arrived twice" in said for said in servers[0]["violations"])
    assert all("push 1 of worker 2 to server 0" in said for said in servers[0]["violations"])
    assert mismatches(answers.workers) == []


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_push_that_a_server_applies_twice_is_found_by_every_worker(parts: PushParts, mode: str) -> None:
    answers = with_fault(parts, "server 1", {"kind": "double", "step": 2}, mode=mode)
    _, workers = answers.reports
    for worker in workers:
        wrong = [m for m in worker["mismatches"] if "server 1" in m["operation"]]
        assert wrong and all("server 0" not in m["operation"] for m in worker["mismatches"])
        # A pull in between may hold the push of some of them.
        last = [m for m in wrong if m["operation"].startswith("weights after")]
        assert last[0]["contributions"] == {"0": 2, "1": 2, "2": 2}
        assert "push 2 of worker 1 was applied twice" in last[0]["explanation"]


@pytest.mark.parametrize("mode", MODES)
def test_one_flipped_bit_of_a_push_is_found_where_it_arrives(parts: PushParts, mode: str) -> None:
    fault = {"kind": "flip", "server": 1, "shard": 0, "element": 3, "bit": 22, "step": 2}
    answers = with_fault(parts, "worker 0", fault, mode=mode)
    assert answers.servers[0]["report"]["mismatches"] == []
    (mismatch,) = answers.servers[1]["report"]["mismatches"]
    assert mismatch["operation"] == "push 2 of worker 0 to server 1, shard 0"
    assert (mismatch["index"], mismatch["wrong"], mismatch["flipped_bits"]) == (3, 1, "0x00400000")
    assert "bit 22" in mismatch["explanation"] and mismatch["explanation"].startswith("element ")
    _, workers = answers.reports
    assert all("shard 0 of server 1" in m["operation"] and m["wrong"] == 1 for m in mismatches(answers.workers))
    assert all(worker["mismatches"] for worker in workers)


def test_one_flipped_bit_in_a_servers_memory_is_found_by_the_workers(parts: PushParts) -> None:
    # Later additions may round a low bit of a sum away; then it is not a fault.
    fault = {"kind": "flip", "shard": 0, "element": 5, "bit": 21, "step": 3}
    answers = with_fault(parts, "server 0", fault, mode="async")
    assert mismatches(answers.servers) == [], "every push was right"
    _, workers = answers.reports
    assert all(worker["mismatches"][0]["operation"].endswith("shard 0 of server 0") for worker in workers)


def test_losses_in_training_show_as_missing_pushes(parts: PushParts) -> None:
    fault = {"kind": "loss", "server": 0, "step": 4, "phase": "servers"}
    servers, _ = with_fault(parts, "worker 0", fault, mode="sync").reports
    assert servers[0]["violations"] == ["push 4 of worker 0 to server 0 (training phase) never came"]


def test_delay_is_not_a_fault_but_others_wait(parts: PushParts) -> None:
    fault = {"kind": "delay", "seconds": 0.05, "phase": "servers"}
    servers, workers = with_fault(parts, "worker 1", fault, mode="sync", steps=10).reports
    assert all(server["violations"] == [] for server in servers)
    waited = {seen["index"]: seen["waited_s"] for seen in servers[0]["seen"]}
    assert waited[1] < min(waited[0], waited[2]), "the slow one never waits"
    assert sum(workers[1]["compute_s"]) > 0.5


@pytest.mark.parametrize("mode", ["sync", "async", "ssp"])
@pytest.mark.parametrize("mid_push", [False, True], ids=["between", "mid-push"])
def test_killed_worker_is_named_by_every_process(parts: PushParts, mode: str, mid_push: bool) -> None:
    fault = {"kind": "kill", "step": 2, "mid_push": mid_push, "phase": "servers"}
    answers = with_fault(parts, "worker 1", fault, mode=mode)
    assert answers.workers[1]["code"] == -signal.SIGKILL
    for survivor in (*answers.servers, answers.workers[0], answers.workers[2]):
        assert survivor["kind"] == "blocked" and "worker 1" in survivor["error"], survivor["error"]
        (problem,) = [e for e in survivor["events"] if e["event"] == rank_events.PROBLEM]
        assert problem["consequence"] is True
    because = [e["because"] for s in answers.servers for e in s["events"] if "because" in e]
    assert because == [[3]] * len(because) and because


def test_a_killed_server_is_named_by_every_worker(parts: PushParts) -> None:
    fault = {"kind": "kill", "step": 2, "phase": "servers"}
    answers = with_fault(parts, "server 1", fault, mode="async")
    assert answers.servers[1]["code"] == -signal.SIGKILL
    assert all(w["kind"] == "blocked" and "server 1" in w["error"] for w in answers.workers)
    assert "server 1" in answers.servers[0]["error"], "the other server hears why its workers leave"


def test_a_stopped_server_is_named_within_the_deadline(parts: PushParts) -> None:
    fault = {"kind": "stop", "step": 3, "phase": "servers"}
    answers = with_fault(parts, "server 1", fault, mode="sync", least_limit_s=2.0, stopped=("server 1",))
    waited = []
    for worker in answers.workers:
        assert worker["kind"] == "blocked" and "server 1" in worker["error"]
        waits = [e for e in worker["events"] if e["event"] == rank_events.ENTERING and e["waiting_for"] == [1]]
        waited += [worker["ended_s"] - waits[-1]["at_s"]] if waits else []
    assert waited, "whoever waits for that server says so; the others hear of it from server 0"
    assert max(waited) < 10, "the deadline is 2 s; the rest is for a busy machine"


@pytest.mark.parametrize("kind", ["stop", "stall"])
def test_stalled_worker_is_named_by_the_servers(parts: PushParts, kind: str) -> None:
    fault = {"kind": kind, "step": 3, "phase": "servers"}
    answers = with_fault(parts, "worker 2", fault, mode="sync", least_limit_s=2.0, stopped=("worker 2",))
    for survivor in (*answers.servers, *answers.workers[:2]):
        assert "worker 2" in survivor["error"] and survivor["kind"] == "blocked", survivor["error"]
    lacking = [e for s in answers.servers for e in s["events"] if e.get("waiting_for") == [4]]
    assert lacking, "the servers say who is missing"
