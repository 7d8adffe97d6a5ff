"""A worker that proved itself and then sends nonsense: the server refuses it with a sentence and allocates nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_trainer.ps import frames
from reference_trainer.ps.channel import PeerError
from reference_trainer.ps.frames import Header
from reference_trainer.ps.store import PIECE
from tests.reference_trainer.ps.spoken import Spoken

pytestmark = pytest.mark.smoke

#: More than a piece of a push, and no multiple of one.
LARGE = {"dense": [["a", [9 * PIECE + 3]]], "tables": []}


@pytest.mark.parametrize(
    ("header", "payload", "sentence"),
    [
        (Header(frames.PUSH, bytes=1 << 39), b"", "pushed 549755813888 bytes for a shard of 256"),
        (Header(frames.PUSH, shard=7, bytes=256), b"", "pushed shard 7 of 1"),
        (Header(frames.PUSH, bytes=128), bytes(128), "pushed 128 bytes for a shard of 256"),
        (Header(frames.LOOKUP, count=1 << 31, bytes=1 << 34), b"", "at most 10 are taken"),
        (Header(frames.LOOKUP, shard=3), b"", "speaks of table 3 of 1"),
        (Header(frames.LOOKUP, count=2, bytes=99), b"", "looked up 2 rows with 99 bytes"),
        (Header(frames.UPDATE, count=2, bytes=16), b"", "updated 2 rows of 4 numbers with 16 bytes"),
        (Header(frames.UPDATE, frames.SAME_ROWS, count=2, bytes=32), b"", "updated 2 rows that it had not looked up"),
        (
            Header(frames.LOOKUP, count=2, bytes=16),
            (5).to_bytes(8, "little") * 2,
            "not sorted, not distinct or not here",
        ),
        (Header(frames.LOOKUP, count=1, bytes=8), (10).to_bytes(8, "little"), "not sorted, not distinct or not here"),
        (Header(frames.LOOKUP, count=1, bytes=8), b"\xff" * 8, "not sorted, not distinct or not here"),
        (Header(frames.PULL, bytes=8), b"", "sent a payload with PULL"),
        (Header(frames.PULL, clock=1 << 60), b"", "is at clock 1152921504606846976; there are 10 pushes"),
        (Header(frames.PUSH, clock=10, bytes=256), b"", "sent push 10; there are 10"),
        (Header(frames.DATA), b"", "sent DATA"),
        (Header(frames.BARRIER, phase=9), b"", "is at barrier 9, the server at 3"),
        (Header(frames.TAKEOVER), b"", "wants the place of worker 0"),
        (Header(frames.WAITING, bytes=1 << 30), b"", "sent a text of 1073741824 bytes"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(header: Header, payload: bytes, sentence: str) -> None:
    spoken = Spoken()
    spoken.send(header, payload)
    assert sentence in spoken.ends()
    assert spoken.host.clocks.ended is not None and "worker 0 (node-b, process 7)" in spoken.host.clocks.ended.text


def test_something_else_in_the_stream_is_refused() -> None:
    spoken = Spoken()
    spoken.raw.send(b"x" * frames.HEADER_BYTES)
    assert "not the protocol of preflight" in spoken.ends()


def test_a_push_cut_off_in_the_middle_changes_nothing() -> None:
    spoken = Spoken()
    before = spoken.host.store.dense.clone()
    spoken.send(Header(frames.UPDATE, count=0))
    spoken.send(Header(frames.PUSH, frames.LAST, bytes=256), b"\x01" * 100)
    spoken.close()
    assert spoken.host.store.dense.equal(before)
    assert spoken.host.clocks.clock == [0]
    assert spoken.host.clocks.ended is not None and "is gone" in spoken.host.clocks.ended.text


def test_where_a_spare_worker_may_push_again_a_large_push_that_breaks_off_changes_nothing() -> None:
    spoken = Spoken(model=LARGE, spares=1)
    before = spoken.host.store.dense.clone()
    spoken.send(Header(frames.PUSH, frames.LAST, count=before.numel(), bytes=4 * before.numel()), b"\1" * (2 << 20))
    spoken.close()
    assert spoken.host.store.dense.equal(before)
    assert spoken.host.clocks.parts == [0] and 0 in spoken.host.vacant


def test_an_update_without_row_numbers_is_about_the_rows_looked_up_last() -> None:
    spoken = Spoken()
    before = spoken.host.store.rows[0].clone()
    for row in (1, 7):
        spoken.send(Header(frames.LOOKUP, count=1, bytes=8), row.to_bytes(8, "little"))
        spoken.channel.take(memoryview(bytearray(spoken.channel.receive().bytes)))
    one = bytes.fromhex("0000803f") * 4
    spoken.send(Header(frames.UPDATE, frames.SAME_ROWS | frames.DELTA, count=1, bytes=16), one)
    spoken.send(Header(frames.PUSH, frames.LAST, bytes=256), bytes(256))
    spoken.send(Header(frames.PULL, clock=1))
    spoken.channel.take(memoryview(bytearray(spoken.channel.receive().bytes)))
    spoken.close()
    moved = (spoken.host.store.rows[0] != before).any(1).nonzero().flatten().tolist()
    assert moved == [7]


def test_rows_looked_up_once_are_not_updated_twice_unasked() -> None:
    spoken = Spoken()
    spoken.send(Header(frames.LOOKUP, count=1, bytes=8), (3).to_bytes(8, "little"))
    spoken.channel.take(memoryview(bytearray(spoken.channel.receive().bytes)))
    for clock in (0, 1):
        spoken.send(Header(frames.UPDATE, frames.SAME_ROWS, clock=clock, count=1, bytes=16), bytes(16))
        spoken.send(Header(frames.PUSH, frames.LAST, clock=clock, bytes=256), bytes(256))
    assert "updated 1 rows that it had not looked up" in spoken.ends()


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
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=st.lists(st.builds(Header, **FIELDS), min_size=1, max_size=6), payload=st.binary(max_size=64))
def test_no_sequence_of_requests_breaks_a_server(mode: str, asked: list[Header], payload: bytes) -> None:
    spoken = Spoken(mode)
    sent = threading.Thread(target=_send_all, args=(spoken, asked, payload))
    sent.start()
    sent.join(20)
    spoken.close()
    ended = spoken.host.clocks.ended
    assert ended is not None and "failed" not in ended.text, ended.text


def _send_all(spoken: Spoken, asked: list[Header], payload: bytes) -> None:
    for header in asked:
        size = min(header.bytes, 256)
        try:
            spoken.send(header, (payload * size)[:size] if payload else bytes(size))
        except PeerError:
            return
