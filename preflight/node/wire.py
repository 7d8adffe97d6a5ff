"""Frames between the head and an agent: a length, then one JSON message.

Both ends import this module, so it keeps to Python 3.8 and the standard library. JSON rather than pickle,
because a node is not trusted to run code on the head. A frame is a 4-byte big-endian length and that many bytes
of UTF-8 JSON: an object with `type` and the fields of the dataclass of that name.
"""

from __future__ import annotations

import json
import math
import struct

from preflight.node.record import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

PROTOCOL = 1
#: A longer frame is a fault of the peer, not data: facts are kilobytes.
LARGEST_FRAME_BYTES = 32 * 1024 * 1024
#: Without a word from the head for this long, an agent ends everything it started.
LEASE_S = 3.0
#: How often either side speaks when it has nothing to say.
BEAT_S = 0.5

_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """The peer sent something that is no frame of this protocol."""


@dataclass(frozen=True)
class Context:
    """Where the job's ranks really run: the wrappers, interpreter, directory and variables of a child.

    `wrapper` stands in front of the interpreter (`apptainer exec image.sif`); `prelude` holds shell lines to run
    first and is only filled with the user's consent. `environment` is laid over what the agent inherited. With
    `script` (`torchrun`) the interpreter is the one that this console script of the node's PATH runs in.
    """

    interpreter: str = "python3"
    wrapper: List[str] = field(default_factory=list)
    directory: Optional[str] = None
    environment: Dict[str, str] = field(default_factory=dict)
    prelude: List[str] = field(default_factory=list)
    provenance: str = ""
    script: str = ""


@dataclass(frozen=True)
class Ask:
    """Head to agent: run `target` (`module:function`) in a child and send back what it returns.

    Without `context` the child is a fork of the agent. With one it is a fork of a process that stays in that context
    for all such requests, or, where `fresh`, an interpreter of its own there: for ranks, which load frameworks.
    A child that outlives `deadline_s` is killed and answered with `Failed(kind="timeout")`. Entering the context may
    take `start_s` beyond that; what it took longer has been `spent_s` of the deadline when the child starts.
    Requests that name the same kind in `together` and come at the same time may share a child.
    """

    id: int
    target: str
    params: Dict[str, Any] = field(default_factory=dict)
    deadline_s: float = 5.0
    context: Optional[Context] = None
    fresh: bool = False
    start_s: float = 0.0
    spent_s: float = 0.0
    together: str = ""


@dataclass(frozen=True)
class Ship:
    """Head to agent, before the first request: further `modules`, by name with their sources, to import from memory.

    `packages` are those among them that hold others. The agent's own came before it, with the loader's bundle.
    """

    modules: Dict[str, str] = field(default_factory=dict)
    packages: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cancel:
    """Head to agent: kill the child of this request; it is answered with `Failed(kind="cancelled")`."""

    id: int


@dataclass(frozen=True)
class Signal:
    """Head to agent: ask the child of this request to dump its stacks (`what="stacks"`)."""

    id: int
    what: str = "stacks"


@dataclass(frozen=True)
class Beat:
    """Either way: still here. `sent_s` is the sender's wall clock, from which clock offsets are estimated.

    A beat that answers another says so: `echo_s` is the `sent_s` of that one, `received_s` when it came in by the
    wall clock of who answers. Only the agent answers beats.
    """

    sent_s: float = 0.0
    echo_s: float = 0.0
    received_s: float = 0.0


@dataclass(frozen=True)
class Ready:
    """Agent to head, first: who and where it is."""

    protocol: int
    host: str
    pid: int
    python: str
    executable: str
    boot_id: str
    user: str
    notes: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """Agent to head: something a running child said, or (`origin="agent"`) was seen to do."""

    id: int
    at_s: float
    origin: str
    data: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """Agent to head: the child returned this value."""

    id: int
    value: Any = None


@dataclass(frozen=True)
class Failed:
    """Agent to head: no value, and why.

    `kind` is one of `UNAVAILABLE_KINDS`; `detail` holds raw evidence (the end of standard error, a traceback);
    `exit_code` is negative for a signal, as `subprocess` counts.
    """

    id: int
    kind: str
    reason: str
    detail: str = ""
    exit_code: Optional[int] = None


#: Why a fact could not be had. `missing`: tool, file or device is not there. `denied`: no permission. `timeout`: the
#: deadline passed. `crashed`: the probe died. `unreachable`: the node gave no agent. `blocked`: something it depends
#: on failed. `context`: the job context could not be entered. `cancelled`: nobody waits any more.
UNAVAILABLE_KINDS = (
    "missing",
    "denied",
    "timeout",
    "crashed",
    "unreachable",
    "blocked",
    "context",
    "cancelled",
)


class ProbeUnavailable(Exception):
    """Raised by a probe that cannot observe what it was asked for; becomes `Failed` with this kind and reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        if kind not in UNAVAILABLE_KINDS:
            raise ValueError("unknown kind of unavailability: %r" % kind)
        self.kind = kind
        self.reason = reason


_MESSAGES = (Ask, Ship, Cancel, Signal, Beat, Ready, Event, Done, Failed)
_TYPES: Dict[str, Any] = {cls.__name__.lower(): cls for cls in _MESSAGES}


_NUMBER = (int, float)
#: What a field of each name must hold, in whichever message it stands; `value` may be anything.
_FIELDS: Dict[str, Any] = {
    **dict.fromkeys(("id", "protocol", "pid"), int),
    **dict.fromkeys(("deadline_s", "start_s", "spent_s", "sent_s", "echo_s", "received_s", "at_s"), _NUMBER),
    **dict.fromkeys(("target", "what", "host", "python", "executable", "boot_id", "user", "origin", "together"), str),
    **dict.fromkeys(("kind", "reason", "detail", "interpreter", "provenance"), str),
    **dict.fromkeys(("params", "data", "environment", "modules"), dict),
    **dict.fromkeys(("notes", "wrapper", "prelude", "packages"), list),
    "fresh": bool,
    "exit_code": (int, type(None)),
    "directory": (str, type(None)),
    "context": (Context, type(None)),
}


def _checked(message: Any) -> Any:
    """The message, if its fields hold what they must: the head does arithmetic with what nodes send."""
    for name, value in vars(message).items():
        expected = _FIELDS.get(name)
        if expected is not None and (
            not isinstance(value, expected) or isinstance(value, bool) is not (expected is bool)
        ):
            raise ValueError("%s is %.40r" % (name, value))
        if name in ("notes", "wrapper", "prelude") and not all(isinstance(item, str) for item in value):
            raise ValueError("%s holds more than text" % name)
    if isinstance(message, Failed) and message.kind not in UNAVAILABLE_KINDS:
        raise ValueError("unknown kind %.40r" % message.kind)
    return message


def _finite(text: str) -> float:
    """A number as JSON means it: neither `NaN` and `Infinity`, nor too large to be anything else."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("%.40s is no number of JSON" % text)
    return number


def encode(message: Any) -> bytes:
    """One frame. Raises WireError when the message is larger than `LARGEST_FRAME_BYTES`."""
    # Not `asdict`, which copies every value: a fact may hold megabytes.
    body = dict(vars(message))
    context = body.get("context")
    if context is not None:
        body["context"] = vars(context)
    body["type"] = type(message).__name__.lower()
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    if len(data) > LARGEST_FRAME_BYTES:
        raise WireError("a message of %d bytes is larger than %d" % (len(data), LARGEST_FRAME_BYTES))
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Any:
    """The message in one frame's body. Raises WireError for anything this protocol does not know."""
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
        kind = body.pop("type")
        cls = _TYPES[kind]
        context = body.get("context")
        if cls is Ask and context is not None:
            body["context"] = _checked(Context(**context))
        return _checked(cls(**body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError("not a message of this protocol: %s: %.80r" % (error, data)) from None


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Messages completed by `data`. Raises WireError for an impossible length or message."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > LARGEST_FRAME_BYTES:
                raise WireError("a frame of %d bytes is announced; at most %d" % (length, LARGEST_FRAME_BYTES))
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield decode(body)
