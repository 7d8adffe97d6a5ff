"""Headers survive encoding, and any other bytes are rejected with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.ps import frames
from reference_trainer.ps.frames import Header

HEADERS = st.builds(
    Header,
    op=st.sampled_from(sorted(frames.NAMES)),
    flags=st.integers(0, 0xFFFF),
    worker=st.integers(0, 2**32 - 1),
    clock=st.integers(-(2**63), 2**63 - 1),
    shard=st.integers(0, 2**32 - 1),
    count=st.integers(0, 2**32 - 1),
    bytes=st.integers(0, frames.MAX_BYTES),
    phase=st.integers(0, 2**32 - 1),
)


@given(HEADERS)
def test_header_round_trip(header: Header) -> None:
    data = frames.encode(header)
    assert len(data) == frames.HEADER_BYTES
    assert frames.decode(data) == header


@given(st.binary(max_size=100))
def test_any_bytes_are_a_header_or_a_frame_error(data: bytes) -> None:
    try:
        header = frames.decode(data)
    except frames.FrameError as error:
        assert str(error)
    else:
        assert frames.encode(header) == data


@given(HEADERS, st.integers(0, frames.HEADER_BYTES * 8 - 1))
def test_one_flipped_bit_of_a_header_is_found(header: Header, bit: int) -> None:
    data = bytearray(frames.encode(header))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(frames.FrameError):
        frames.decode(data)


def test_foreign_protocol_is_quoted() -> None:
    with pytest.raises(frames.FrameError, match="GET / HTTP"):
        frames.decode(b"GET / HTTP/1.1\r\nHost: node-a\r\n\r\n".ljust(frames.HEADER_BYTES))


def test_impossible_payload_is_rejected() -> None:
    with pytest.raises(frames.FrameError, match="announces"):
        frames.decode(frames.encode(Header(frames.PUSH, bytes=frames.MAX_BYTES + 1)))
