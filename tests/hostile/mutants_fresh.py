"""Forty more mutated agents, written after the bounds and not used to develop them."""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

from tests.hostile.mutants import (
    EVENT,
    LENGTH,
    Agent,
    Mutant,
    Raw,
    deeply,
    dump,
    endless,
    frame,
    framed,
    number,
    text,
    with_body,
    with_extra,
    with_facts,
    with_field,
    with_stream,
)


def nested_strings(value: Any) -> str:
    """Nest a fact as JSON in JSON in JSON."""
    found = json.dumps(value)
    for _ in range(6):
        found = json.dumps(found)
    return found


def renamed(change: Any) -> Mutant:
    """Agents whose answers have other keys."""

    def mutant(agent: Agent, message: dict[str, Any]) -> bytes:
        if message["type"] == "done" and isinstance(message.get("value"), dict):
            message = {**message, "value": {change(key): item for key, item in message["value"].items()}}
        return frame(message)

    return mutant


def rotated(agent: Agent, message: dict[str, Any]) -> bytes:
    """Each answer is sent in the frame of the one before it."""
    if message["type"] != "done":
        return frame(message)
    before = agent.last.get("kept")
    agent.last["kept"] = message
    return frame({**message, "value": before["value"]}) if before else frame(message)


def of_types(kind: str, new: Any) -> Mutant:
    """Frames with another type."""
    return with_field(kind, "type", new)


def random_bytes(message: dict[str, Any]) -> Any:
    """Frames of random bytes with honest lengths."""
    chance = random.Random(7)
    return iter([framed(chance.randbytes(chance.randrange(1, 4096))) for _ in range(200)])


def compressed(body: bytes) -> bytes:
    """The compressed body."""
    return zlib.compress(body)


def keys_of_python(value: Any) -> Any:
    """Every key is an attribute name of Python objects."""
    if isinstance(value, dict):
        return {("__class__", "__dict__", "__init__")[n % 3] + str(n): item for n, item in enumerate(value.values())}
    return value


MUTANTS: dict[str, Mutant] = {
    "fresh-value-true": with_field("done", "value", True),
    "fresh-value-float": with_field("done", "value", -0.0),
    "fresh-value-list-of-lists": with_field("done", "value", [[[[]]]] * 2000),
    "fresh-value-infinite": with_field("done", "value", Raw("1e999")),
    "fresh-value-minus-infinite": with_field("done", "value", Raw("-1e999")),
    "fresh-value-exponent": with_field("done", "value", Raw("1" + "0" * 300 + "e-300")),
    "fresh-value-surrogates": with_facts(text("\ud800\udfff")),
    "fresh-value-nul": with_facts(text("\0")),
    "fresh-value-workflow": with_facts(text("\n::error::owned\r##[error]x")),
    "fresh-value-html": with_facts(text("</script><script>alert(1)</script>")),
    "fresh-value-rich-markup": with_facts(text("[bold red]x[/] [link=http://x]y[/link] [/nothing]")),
    "fresh-value-format": with_facts(text("{0.__class__} %s %n {}")),
    "fresh-value-combining": with_facts(text("e" + "\u0301" * 5000)),
    "fresh-value-wide": with_facts(text("\uff21" * 3000)),
    "fresh-value-json": with_facts(lambda leaf: nested_strings(leaf)),
    "fresh-numbers-negative": with_facts(number(-(1 << 62))),
    "fresh-numbers-subnormal": with_facts(number(5e-324)),
    "fresh-numbers-half": with_facts(number(0.5)),
    "fresh-numbers-as-text": with_facts(number("12")),
    "fresh-numbers-as-bool": with_facts(number(False)),
    "fresh-keys-upper": renamed(str.upper),
    "fresh-keys-empty": renamed(lambda key: ""),
    "fresh-keys-long": renamed(lambda key: key * 20_000),
    "fresh-keys-of-python": lambda agent, message: frame(
        {**message, "value": keys_of_python(message["value"])} if message["type"] == "done" else message
    ),
    "fresh-rotated": rotated,
    "fresh-done-is-beat": of_types("done", "beat"),
    "fresh-done-is-event": of_types("done", "event"),
    "fresh-done-is-ready": of_types("done", "ready"),
    "fresh-done-type-list": of_types("done", ["done"]),
    "fresh-ready-is-done": of_types("ready", "done"),
    "fresh-beat-is-failed": of_types("beat", "failed"),
    "fresh-id-zero": with_field("done", "id", 0),
    "fresh-id-negative": with_field("done", "id", -1),
    "fresh-id-float": with_field("done", "id", 1.0),
    "fresh-id-text": with_field("done", "id", "1"),
    "fresh-compressed": with_body("done", compressed),
    "fresh-with-bom": with_body("done", lambda body: b"\xef\xbb\xbf" + body),
    "fresh-in-utf-16": with_body("done", lambda body: body.decode().encode("utf-16")),
    "fresh-two-documents": with_body("done", lambda body: body + body),
    "fresh-empty-frames": with_stream("done", endless(LENGTH.pack(0) * 1000)),
    "fresh-little-endian": with_stream("done", lambda m: iter([struct.pack("<I", len(dump(m))) + dump(m)])),
    "fresh-random-frames": with_stream("done", random_bytes),
    "fresh-events-before-ready": with_extra(
        {**EVENT, "id": 1 << 40, "data": {"phase": "x", "rank": -1}}, with_="ready"
    ),
    "fresh-leaves-are-objects": with_facts(lambda leaf: {"value": leaf, "unavailable": None}),
    "fresh-leaves-are-lists": with_facts(lambda leaf: [leaf] * 3),
    "fresh-deep-leaves": lambda agent, message: frame(
        {**message, "value": deeply(message["value"], lambda leaf: [[[[[[[[leaf]]]]]]]])}
        if message["type"] == "done"
        else message
    ),
}
assert len(MUTANTS) >= 40
