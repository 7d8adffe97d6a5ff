"""Frames between the head and an agent: a 4-byte big-endian length and that many bytes of UTF-8 JSON, an object with
`type` and the fields of the dataclass of that name.

JSON and not pickle, because a node may not run code on the head. Whatever could exhaust this process or break
arithmetic is rejected first: size, depth, number of items, integers beyond 64 bits, non-finite numbers, duplicate keys,
invalid UTF-8. Both ends import this module: Python 3.8 and the standard library.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator


PROTOCOL = 1
#: The largest frame from the head, which sends modules. Frames of nodes are at most `ANSWER_BYTES`.
MAX_FRAME_BYTES = 32 * 1024 * 1024
#: The largest event: the head keeps each of them until the end of the run.
EVENT_BYTES = 256 * 1024
#: An agent that gets no message from the head for this long ends everything it started.
LEASE_S = 3.0
#: Last message of an agent that ended for that reason.
HEAD_SILENT = "the head was silent"
#: How often either side sends a heartbeat when it has nothing to send.
BEAT_S = 0.5

_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """The peer sent something that is not a frame of this protocol."""


@dataclass(frozen=True)
class Context:
    """The environment of the job's ranks: the wrappers, interpreter, directory and variables for a child.

    `wrapper` precedes the interpreter (`apptainer exec image.sif`); `prelude` holds shell lines to run first and is
    only set with the user's consent. `environment` is added to what the agent inherited. With `script` (`torchrun`) the
    interpreter is that of this console script on the node's PATH.
    """

    interpreter: str = "python3"
    wrapper: list[str] = field(default_factory=list)
    directory: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prelude: list[str] = field(default_factory=list)
    provenance: str = ""
    script: str = ""


@dataclass(frozen=True)
class AgentRequest:
    """Head to agent: run `target` (`module:function`) in a child and send back its result.

    Without `context` the child is a fork of the agent. With a context it is a fork of a process that stays in the
    context for all such requests, or, with `fresh`, a new interpreter there, for ranks, which load frameworks. A child
    that outlives `deadline_s` is killed and answered with `Failed(kind="timeout")`. Entering the context may take
    `start_s` beyond that; `spent_s` of the deadline is already used up when the child starts. Requests that name the
    same kind in `together` and arrive at the same time may share a child.
    """

    id: int
    target: str
    params: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = 5.0
    context: Context | None = None
    fresh: bool = False
    start_s: float = 0.0
    spent_s: float = 0.0
    together: str = ""


@dataclass(frozen=True)
class Ship:
    """Head to agent, before the first request: further `modules`, by name with their sources, to import from memory.

    `packages` are those that contain others. The agent's own modules were sent earlier, with the loader's bundle.
    """

    modules: dict[str, str] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cancel:
    """Head to agent: kill the child of this request; it is answered with `Failed(kind="cancelled")`."""

    id: int


@dataclass(frozen=True)
class Signal:
    """Head to agent: make the child of this request dump its stacks (`what="stacks"`)."""

    id: int
    what: str = "stacks"


@dataclass(frozen=True)
class Beat:
    """Either way: a heartbeat. `sent_s` is the sender's wall clock, from which clock offsets are estimated.

    A heartbeat that answers another has `echo_s`, which is the other's `sent_s`, and `received_s`, its time of arrival
    by the wall clock of the answering side. Only the agent answers heartbeats.
    """

    sent_s: float = 0.0
    echo_s: float = 0.0
    received_s: float = 0.0


@dataclass(frozen=True)
class Ready:
    """Agent to head, first: identity and environment of the agent."""

    protocol: int
    host: str
    pid: int
    python: str
    executable: str
    boot_id: str
    user: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """Agent to head: a message from a running child, or (`origin="agent"`) an observation about it."""

    id: int
    at_s: float
    origin: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """Agent to head: the child returned this value."""

    id: int
    value: Any = None


@dataclass(frozen=True)
class Failed:
    """Agent to head: the reason why there is no value.

    `kind` is one of `UNAVAILABLE_KINDS`; `detail` holds raw evidence (the end of standard error, a traceback);
    `exit_code` is negative for a signal, as in `subprocess`.
    """

    id: int
    kind: str
    reason: str
    detail: str = ""
    exit_code: int | None = None


#: Why a fact is missing. `missing`: tool, file or device does not exist. `denied`: no permission. `timeout`: the
#: deadline passed. `crashed`: the probe died. `unreachable`: the node has no agent. `blocked`: something it depends on
#: failed. `context`: the job context could not be entered. `cancelled`: no longer needed.
UNAVAILABLE_KINDS = ("missing", "denied", "timeout", "crashed", "unreachable", "blocked", "context", "cancelled")


class ProbeUnavailable(Exception):
    """Raised by a probe that cannot make its observation; becomes `Failed` with this kind and reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        if kind not in UNAVAILABLE_KINDS:
            raise ValueError(f"unknown kind of unavailability: {kind!r}")
        self.kind = kind
        self.reason = reason


_MESSAGES = (AgentRequest, Ship, Cancel, Signal, Beat, Ready, Event, Done, Failed)
_TYPES: dict[str, Any] = {cls.__name__.lower(): cls for cls in _MESSAGES}


#: 9999-12-31: the last time that `datetime` supports.
_LAST_S = 253402300799.0
_NUMBER = (int, float)
#: The valid values of a field of each name, in any message: types, and the smallest and largest number or the longest
#: text or list. `value` may be anything.
_FIELDS: dict[str, Any] = {
    "id": (int, 0, 1 << 31),
    "protocol": (int, 0, 1 << 31),
    "pid": (int, 0, 1 << 31),
    "exit_code": ((int, type(None)), -(1 << 31), 1 << 32),
    **dict.fromkeys(("deadline_s", "start_s", "spent_s"), (_NUMBER, 0, 1e8)),
    **dict.fromkeys(("sent_s", "echo_s", "received_s", "at_s"), (_NUMBER, 0, _LAST_S)),
    **dict.fromkeys(("host", "python", "boot_id", "user", "origin", "kind", "what", "together"), (str, 0, 1024)),
    **dict.fromkeys(("target", "executable", "interpreter", "provenance", "script"), (str, 0, 16384)),
    "directory": ((str, type(None)), 0, 16384),
    **dict.fromkeys(("reason", "detail"), (str, 0, 1 << 16)),
    **dict.fromkeys(("params", "data", "environment", "modules"), (dict, 0, 1 << 20)),
    "notes": (list, 0, 64),
    **dict.fromkeys(("wrapper", "prelude", "packages"), (list, 0, 1 << 16)),
    "fresh": (bool, 0, 1),
    "context": ((Context, type(None)), 0, 0),
}
#: Lists of texts, and the maximum length of each.
_TEXTS = {"notes": 4096, "wrapper": 1 << 20, "prelude": 1 << 20, "packages": 1024}


def _validate(message: Any) -> Any:
    """Return the message if its fields are valid. The head does arithmetic with values from nodes."""
    for name, value in vars(message).items():
        expected = _FIELDS.get(name)
        if expected is None:
            continue
        types, least, most = expected
        if not isinstance(value, types) or isinstance(value, bool) is not (types is bool):
            raise ValueError("%s is %.40r" % (name, value))
        size = len(value) if isinstance(value, (str, list, dict)) else value
        if isinstance(size, (int, float)) and not least <= size <= most:
            what = f"{size}" if size is value else "%d long" % size
            raise ValueError(f"{name} is {what}; expected {least} to {most}")
        if name in _TEXTS and not all(isinstance(item, str) and len(item) <= _TEXTS[name] for item in value):
            raise ValueError(f"{name} must contain only short strings")
    if isinstance(message, Failed) and message.kind not in UNAVAILABLE_KINDS:
        raise ValueError("unknown kind %.40r" % message.kind)
    return message


def encode(message: Any, *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Encode one frame. Raises WireError if it exceeds `max_bytes`, or the limit for an event."""
    # Not `asdict`, which copies every value: a fact may hold megabytes.
    body = dict(vars(message))
    context = body.get("context")
    if context is not None:
        body["context"] = vars(context)
    body["type"] = type(message).__name__.lower()
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    if isinstance(message, Event):
        max_bytes = min(max_bytes, EVENT_BYTES)
    if len(data) > max_bytes:
        raise WireError(f"a message of {len(data)} bytes is larger than {max_bytes}")
    if isinstance(message, AgentRequest):
        # A job's files may contain any number; an invalid one would end the agent.
        try:
            check_numbers(message.params)
        except ValueError as error:
            raise WireError(f"the parameters contain {error}") from None
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> Any:
    """Decode the message in one frame's body. Raises WireError for anything that this protocol does not define."""
    try:
        body = parse(data, max_bytes=max_bytes)
        kind = body.pop("type")
        cls = _TYPES[kind]
        if cls is Event and len(data) > EVENT_BYTES:
            raise ValueError(f"an event of {len(data)} bytes; at most {EVENT_BYTES} are accepted")
        context = body.get("context")
        if cls is AgentRequest and context is not None:
            body["context"] = _validate(Context(**context))
        return _validate(cls(**body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError("not a message of this protocol: %.400s: %.80r" % (error, data[:80])) from None


class FrameReader:
    """Splits a byte stream into messages of at most `max_bytes` each: `ANSWER_BYTES` in data from a node."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._pending = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield messages completed by `data`. Raises WireError for an impossible length or message."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > self._max_bytes:
                raise WireError("a frame of %d bytes was announced; the limit is %d" % (length, self._max_bytes))
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield decode(body, max_bytes=self._max_bytes)


def encode_answer(message: Any) -> bytes:
    """Encode one frame of a node. Raises WireError if it exceeds the limit for an answer or an event."""
    return encode(message, max_bytes=ANSWER_BYTES)


#: The largest answer of a node. Facts are kilobytes; parsed JSON takes up to thirty times its size.
ANSWER_BYTES = 4 * 1024 * 1024
#: The nesting depth of lists and objects. Facts have fewer than ten levels.
MAX_DEPTH = 32
#: Values in one document; each costs some 70 bytes of memory even if it is one character long.
MAX_ITEMS = 250_000
#: Integers of 64 bits, signed or unsigned: each of them converts to a float.
LEAST_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_MAX_DIGITS = 20

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: The first escape of a surrogate pair, or of one half of it.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BoundsError(ValueError):
    """A document exceeds a bound, which the message names."""


def parse(data: bytes, *, max_bytes: int = ANSWER_BYTES, max_items: int = MAX_ITEMS, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value of one JSON document. Raises ValueError (BoundsError, or json's own) that names the fault."""
    if len(data) > max_bytes:
        raise BoundsError(f"{len(data)} bytes; at most {max_bytes} are accepted")
    check_size(data, max_items=max_items)
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except RecursionError:
        raise BoundsError(f"more than {max_depth} levels deep") from None
    check_depth(data, value, max_depth)
    if _SURROGATE.search(data) is not None:
        # Raises UnicodeEncodeError, which is a ValueError, for half of a pair.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def check_size(data: bytes, *, max_items: int = MAX_ITEMS) -> None:
    """Raise BoundsError if a document has too many values, without parsing it."""
    if _items(data) > max_items and _items(_STRING.sub(b'""', data)) > max_items:
        raise BoundsError(f"more than {max_items} items")


def check_depth(data: bytes, value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise BoundsError if `value`, parsed from `data`, is nested too deeply."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    level = [value]
    for _ in range(max_depth + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(entry for entry in item.values() if isinstance(entry, (dict, list)))
            elif isinstance(item, list):
                inner.extend(entry for entry in item if isinstance(entry, (dict, list)))
        if not inner:
            return
        level = inner
    raise BoundsError(f"more than {max_depth} levels deep")


def check_numbers(value: Any) -> None:
    """Raise BoundsError if any number in `value` is one that `parse` would not accept."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            remaining.extend(item.values())
        elif isinstance(item, (list, tuple)):
            remaining.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise BoundsError(f"{item} is not a finite number")
        elif isinstance(item, int) and not LEAST_INTEGER <= item <= MAX_INTEGER:
            raise BoundsError(f"an integer of {item.bit_length()} bits; at most 64 are accepted")


def is_deep(data: bytes, max_depth: int = 64) -> bool:
    """Return whether JSON text is nested more deeply than this, or has mismatched brackets."""
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    for _ in range(max_depth):
        inner = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    # A line of a document may open or close a few brackets that other lines close or open.
    return len(brackets) > max_depth


def _items(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _integer(text: str) -> int:
    if len(text) <= _MAX_DIGITS:
        number = int(text)
        if LEAST_INTEGER <= number <= MAX_INTEGER:
            return number
    raise BoundsError("the integer {:.24}{} has more than 64 bits".format(text, "..." if len(text) > 24 else ""))


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BoundsError(f"{text:.40} is not a finite number")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BoundsError("the key %.40r occurs twice in one object" % key)
            seen.add(key)
    return found


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_object)
