"""Twenty more mutated agents, written after the bounds and hidden during their development."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.hostile.mutants import (
    EVENT,
    HUGE,
    LENGTH,
    Agent,
    Mutant,
    Raw,
    deeply,
    drops,
    dump,
    endless,
    frame,
    framed,
    number,
    text,
    with_body,
    with_extra,
    with_facts,
    with_stream,
)


def random_leaves(agent: Agent, message: dict[str, Any]) -> bytes:
    """Every leaf of a fact is something else each time."""
    chance = random.Random(agent.seen.get("done", 0))
    values = (None, True, -1, 1 << 63, 1e308, 5e-324, "", "²", "9" * 50, [], {}, [[1]], {"": ""})
    if message["type"] == "done":
        message = {**message, "value": deeply(message["value"], lambda leaf: chance.choice(values))}
    return frame(message)


def shuffled_bits(body: bytes) -> bytes:
    """Flip some of its bits."""
    chance = random.Random(len(body))
    data = bytearray(body)
    for _ in range(8):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def reversed_answers(agent: Agent, message: dict[str, Any]) -> bytes:
    """Every answer is a failure with evidence that is too long."""
    if message["type"] == "done":
        return frame(
            {"type": "failed", "id": message["id"], "kind": "missing", "reason": "r" * 60_000, "detail": "d" * 60_000}
        )
    return frame(message)


def speaks_as_the_head(agent: Agent, message: dict[str, Any]) -> bytes:
    """It gives the head requests."""
    return frame(message) + frame({"type": "ask", "id": 1, "target": "os:getcwd", "params": {}})


def ready_again(agent: Agent, message: dict[str, Any]) -> bytes:
    """It sends its hello again with every heartbeat."""
    more = frame({**agent.last["ready"], "host": "other"}) if "ready" in agent.last else b""
    return frame(message) + more


def swaps_lists_and_objects(agent: Agent, message: dict[str, Any]) -> bytes:
    """Lists become objects and objects lists."""

    def swap(value: Any) -> Any:
        if isinstance(value, dict):
            return [swap(item) for item in value.values()]
        if isinstance(value, list):
            return {str(index): swap(item) for index, item in enumerate(value)}
        return value

    return frame({**message, "value": swap(message["value"])} if message["type"] == "done" else message)


def doubled_lists(agent: Agent, message: dict[str, Any]) -> bytes:
    """Every list has each item fifty times."""

    def double(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: double(item) for key, item in value.items()}
        return [double(item) for item in value] * 50 if isinstance(value, list) else value

    return frame({**message, "value": double(message["value"])} if message["type"] == "done" else message)


def beats_then_ends(message: dict[str, Any]) -> Iterator[bytes]:
    """A heartbeat that is cut, with its rest in the next one."""
    whole = frame(message)
    yield whole[:3]
    yield b""
    yield whole[3:] + LENGTH.pack(0)


MUTANTS: dict[str, Mutant] = {
    "sealed-random-leaves": random_leaves,
    "sealed-bits": with_body("done", shuffled_bits),
    "sealed-bits-in-ready": with_body("ready", shuffled_bits),
    "sealed-long-reasons": reversed_answers,
    "sealed-asks": speaks_as_the_head,
    "sealed-ready-again": ready_again,
    "sealed-swapped": swaps_lists_and_objects,
    "sealed-doubled": doubled_lists,
    "sealed-empty-frame": with_stream("beat", beats_then_ends, after=3),
    "sealed-no-beats": drops("beat"),
    "sealed-no-answers": drops("done"),
    "sealed-exponents": with_facts(number(Raw("1E+308"))),
    "sealed-tiny": with_facts(number(Raw("-0.0"))),
    "sealed-digits": with_facts(text("9" * 5000)),
    "sealed-leading-zero": with_facts(number(Raw("01"))),
    "sealed-bom": with_body("done", lambda body: b"\xef\xbb\xbf" + body),
    "sealed-two-documents": with_body("done", lambda body: body + body),
    "sealed-event-deep": with_extra({**EVENT, "data": {"stacks": Raw("[" * 60 + "1" + "]" * 60), "pid": HUGE}}),
    "sealed-failures-without-end": with_stream(
        "done", endless(frame({"type": "failed", "id": 1, "kind": "timeout", "reason": "x"}) * 300)
    ),
    "sealed-type-of-type": lambda agent, message: framed(dump({**message, "type": [message["type"]]})),
}
assert len(MUTANTS) == 20
