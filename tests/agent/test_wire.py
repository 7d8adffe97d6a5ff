"""Frames survive any split of the stream, and garbage is rejected."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.agent.wire import (
    MAX_FRAME_BYTES,
    AgentRequest,
    Beat,
    Cancel,
    Context,
    Done,
    Event,
    Failed,
    FrameReader,
    ProbeUnavailable,
    Ready,
    Signal,
    WireError,
    decode,
    encode,
)

CONTEXT = Context("python", ["apptainer", "exec", "i.sif"], "/w", {"A": "ä"}, ["module load x"], "run.sh:3")
MESSAGES: list[Any] = [
    AgentRequest(1, "a.b:c", {"x": [1, None, "ö"]}, 2.5),
    AgentRequest(2, "a.b:c", {}, 1.0, CONTEXT),
    Cancel(1),
    Signal(1),
    Beat(1.5, 2.5, 3.5),
    Ready(1, "host", 2, "3.8.1", "/usr/bin/python3", "boot", "me", ["note"]),
    Event(1, 2.0, "child", {"phase": "init"}),
    Done(1, {"deep": [{"er": 1.5}]}),
    Failed(1, "timeout", "why", "detail", -9),
]


@given(st.integers(min_value=1, max_value=40))
def test_messages_survive_any_split_of_the_stream(size: int) -> None:
    stream = b"".join(encode(message) for message in MESSAGES)
    reader = FrameReader()
    seen = [m for i in range(0, len(stream), size) for m in reader.feed(stream[i : i + size])]
    assert seen == MESSAGES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"type":"eval"}',
        b'{"type":"beat","more":1}',
        b"\xff",
        b'{"type":["beat"]}',
        b'{"type":"beat","sent_s":"now"}',
        b'{"type":"beat","sent_s":NaN}',
        b'{"type":"beat","sent_s":1e999}',
        b'{"type":"event","id":1,"at_s":true,"origin":"child"}',
        b'{"type":"event","id":1,"at_s":1,"origin":"child","data":[]}',
        b'{"type":"failed","id":1,"kind":"bored","reason":""}',
        b'{"type":"done","id":1,"value":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"type":"ask","id":1,"target":"a:b","context":{"wrapper":[1]}}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_invalid_message_is_rejected(body: bytes) -> None:
    with pytest.raises(WireError):
        decode(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({field.name for message in MESSAGES for field in dataclasses.fields(message)})
KINDS = sorted({type(message).__name__.lower() for message in MESSAGES})


# The time to generate a message depends on the machine, not on the messages.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_input_is_a_message_or_rejected(kind: str, body: dict[str, Any]) -> None:
    try:
        message = decode(json.dumps({"type": kind, **body}).encode())
    except WireError:
        return
    assert decode(encode(message)[4:]) == message


def test_absurd_length_is_rejected_at_once() -> None:
    with pytest.raises(WireError, match="was announced"):
        list(FrameReader().feed(b"ssh: bad"))


def test_oversized_message_is_rejected_by_its_sender() -> None:
    with pytest.raises(WireError, match="larger"):
        encode(Done(1, "x" * (MAX_FRAME_BYTES + 1)))


def test_unavailable_requires_a_known_kind() -> None:
    with pytest.raises(ValueError, match="weather"):
        ProbeUnavailable("weather", "rain")
