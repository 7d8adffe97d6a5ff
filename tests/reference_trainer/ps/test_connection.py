"""An authenticated worker sends invalid requests: the server rejects it with a message and allocates nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_trainer.ps import frames
from reference_trainer.ps.frames import Header, PeerError
from reference_trainer.ps.store import PIECE
from tests.reference_trainer.ps.scripted_worker import ScriptedWorker
from tests.suite.effort import examples

pytestmark = pytest.mark.thorough

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
        (Header(frames.UPDATE, frames.SAME_ROWS, count=2, bytes=32), b"", "updated 2 rows that it had not looked up"),
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
        (Header(frames.PULL, clock=1 << 60), b"", "is at clock 1152921504606846976; there are 10 pushes"),
        (Header(frames.PUSH, clock=10, bytes=256), b"", "sent push 10; there are 10"),
        (Header(frames.DATA), b"", "sent DATA"),
        (Header(frames.BARRIER, phase=9), b"", "is at barrier 9, the server at 3"),
        (Header(frames.TAKEOVER), b"", "asked to replace worker 0"),
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
    assert "updated 1 rows that it had not looked up" in scripted.ends()


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
