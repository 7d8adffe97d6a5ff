"""The few operations that exact arithmetic needs, on torch tensors or numpy arrays.

Paddle's collectives use numpy arrays, torch's use tensors; the known sums are the same formulas for both. Where an
array is created, `device` is a torch device, or `NUMPY`; elsewhere it follows from the array."""

from __future__ import annotations

import hashlib
import json
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from preflight.agent import rank_events, wire
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import rendezvous
from reference_trainer.common.progress import Progress

#: Used instead of a torch device.
NUMPY = "numpy"


def _library(array: Any) -> Any:
    if type(array).__module__.startswith("numpy"):
        import numpy

        return numpy
    import torch

    return torch


def numbers(count: int, device: Any) -> Any:
    """Return int64[count]: 0, 1, 2 ..."""
    if isinstance(device, str) and device == NUMPY:
        import numpy

        return numpy.arange(count, dtype=numpy.int64)
    import torch

    return torch.arange(count, dtype=torch.int64, device=device)


def zeros(count: int, device: Any) -> Any:
    """Return float32[count] of zeros."""
    return floats(numbers(count, device)) * 0.0


def table(values: Sequence[float], index: Any) -> Any:
    """Return float32 of the shape of `index`: the value at each index."""
    library = _library(index)
    if library.__name__ == "numpy":
        return library.array(values, dtype=library.float32)[index]
    return library.tensor(values, dtype=library.float32, device=index.device)[index]


def floats(array: Any) -> Any:
    library = _library(array)
    return array.astype(library.float32) if library.__name__ == "numpy" else array.to(library.float32)


def full(value: float, like: Any) -> Any:
    """Return float32 of the shape of `like`, filled with one value."""
    return floats(like) * 0.0 + value


def stack(arrays: Sequence[Any]) -> Any:
    """Stack arrays along a new first dimension."""
    return _library(arrays[0]).stack(list(arrays))


def count_wrong(got: Any, expected: Any) -> tuple[int, int]:
    """Return how many float32 elements differ in any bit, and the first in row-major order; (0, -1) if none."""
    library = _library(got)
    mask = (got.view(library.int32) != expected.view(library.int32)).reshape(-1)
    if library.__name__ == "numpy":
        found = mask.nonzero()[0]
        return len(found), int(found[0]) if len(found) else -1
    found = mask.nonzero().flatten()
    return int(found.numel()), int(found[0]) if found.numel() else -1


def first_wrong(got: Any, expected: Any, where: Any) -> int:
    """Return the first element, row-major, that differs in any bit where `where` is not 0; -1 if none does."""
    library = _library(got)
    mask = (got.view(library.int32) != expected.view(library.int32)).reshape(-1) & (where != 0)
    found = mask.nonzero()[0] if library.__name__ == "numpy" else mask.nonzero().flatten()
    return int(found[0]) if len(found) else -1


def bits(array: Any, index: int) -> int:
    """Return the 32 bits of one element of float32, row-major."""
    library = _library(array)
    element = array.reshape(-1)[index : index + 1]
    return int(element.view(library.int32)[0]) & 0xFFFFFFFF


def size(array: Any) -> int:
    return int(array.size) if _library(array).__name__ == "numpy" else int(array.numel())


def digest(array: Any) -> str:
    """Return the SHA-256 of the bytes of a float32 array, row-major, which is equal for equal numbers."""
    if _library(array).__name__ == "numpy":
        return hashlib.sha256(array.tobytes()).hexdigest()
    from reference_trainer.ps.exact import digest as of_tensors

    return of_tensors([array])


# A handshake at a port before any framework is imported, for frameworks whose own store cannot report missing
# processes. Paddle's store and servers have no deadline for a single wait and do not report which process they wait
# for. So the process that will listen on a port for the framework first listens there itself: the others report
# their identity and receive the list of missing ones. When all have connected, the port is released. The
# connections may be kept for later messages.


#: Longest message: one line of JSON.
MAX_BYTES = 4096
#: How often the others get the list of missing processes.
NOTICE_S = 0.5
#: Time limit for a client to identify itself, and the number of unidentified clients, of which the oldest is dropped.
INTRODUCTION_S, MAX_UNKNOWN = 5.0, 256
#: Additional time for a client, because the listener knows the missing processes and reports them first.
GRACE_S = 5.0


class JsonLines:
    """One connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def send(self, **message: Any) -> None:
        """Send one line. Raises OSError when the other side is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, ends: float) -> dict[str, Any] | None:
        """Return the next line; None at `ends` (of `time.monotonic`). Raises ConnectionError at the end."""
        while b"\n" not in self._received:
            left = ends - time.monotonic()
            if left <= 0:
                return None
            self.connection.settimeout(left)
            try:
                self._take()
            except socket.timeout:
                return None
        return self._next()

    def ready(self) -> dict[str, Any] | None:
        """Return the next line if it has arrived completely, else None. Raises ConnectionError at the end."""
        if b"\n" not in self._received:
            try:
                self._take()
            except BlockingIOError:
                return None
        return self._next() if b"\n" in self._received else None

    def close(self) -> None:
        self.connection.close()

    def _take(self) -> None:
        part = self.connection.recv(MAX_BYTES)
        if not part:
            raise ConnectionError("connection closed by peer")
        if len(self._received) + len(part) > 4 * MAX_BYTES:
            raise ConnectionError(f"a line exceeds {4 * MAX_BYTES} bytes")
        self._received += part

    def _next(self) -> dict[str, Any]:
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = wire.parse(line)
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}


@dataclass
class _Client:
    line: JsonLines
    message: dict[str, Any] = field(default_factory=dict)
    since_s: float = 0.0


def host_assembly(
    own_entry: dict[str, Any],
    expected: Sequence[int],
    common: Sequence[str],
    progress: Progress,
    listener: socket.socket,
    timeout_s: float,
) -> dict[int, JsonLines]:
    """Wait on `listener`, which is closed before this returns, until all `expected` numbers have connected.

    Args:
        own_entry: the report of this process: `rank`, `host`, and the keys of `common`, which must be equal for all.

    Returns the connection to each. Raises ProbeUnavailable: `denied` if reports contradict each other, `timeout` with
    the numbers of the missing ones.
    """
    ends, notice_at = time.monotonic() + timeout_s, 0.0
    callers: list[_Client] = []
    missing = list(expected)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while missing:
                now = time.monotonic()
                if now >= ends:
                    text = "ranks {} did not connect to the port of rank {} within {:g} s".format(
                        missing, own_entry["rank"], timeout_s
                    )
                    raise ProbeUnavailable("timeout", text)
                if now >= notice_at:
                    _send_all(callers, missing=missing)
                    notice_at = now + NOTICE_S
                _drop_stale(callers, selector, now)
                for key, _ in selector.select(min(NOTICE_S, ends - now)):
                    if key.data is None:
                        _accept(listener, selector, callers)
                    elif _identify(key.data, selector):
                        contradiction = _contradiction(own_entry, key.data, callers, expected, common)
                        if contradiction:
                            _send_all(callers, mismatch=contradiction)
                            _mismatch(progress, contradiction)
                here = {caller.message.get("rank") for caller in callers}
                missing = [rank for rank in expected if rank not in here]
                progress.waits_for(missing)
        except BaseException:
            _send_all(callers, go=False)
            _close(callers)
            raise
        finally:
            listener.close()
    _send_all(callers, go=True)
    _close([caller for caller in callers if not caller.message])
    return {int(caller.message["rank"]): caller.line for caller in callers if caller.message}


def join_assembly(
    own_entry: dict[str, Any], address: str, port: int, host_rank: int, progress: Progress, timeout_s: float
) -> JsonLines:
    """Report to another process's port, and wait until all expected processes have connected there.

    Raises ProbeUnavailable: `denied` if the report contradicts the others, `timeout` when nothing answers, and
    `blocked` when the other side gave up.
    """
    ends = time.monotonic() + timeout_s + GRACE_S
    try:
        line = JsonLines(socket.create_connection((address, port), timeout=rendezvous.ATTEMPT_S))
    except OSError as error:
        text = "%s:%d, the port of rank %d, opened and closed again: %s" % (address, port, host_rank, error)
        raise ProbeUnavailable("timeout", text) from None
    line.send(**own_entry)
    while True:
        message = line.receive(ends)
        if message is None:
            text = f"rank {host_rank} did not report within {timeout_s:g} s that all ranks have connected"
            raise ProbeUnavailable("timeout", text)
        if message.get("mismatch"):
            _mismatch(progress, message["mismatch"])
        if message.get("missing"):
            progress.waits_for([rank for rank in message["missing"] if rank != progress.rank] or [host_rank])
        elif message.get("go"):
            return line
        elif "go" in message:
            raise ProbeUnavailable("blocked", f"rank {host_rank} gave up waiting for the other ranks")


def _accept(listener: socket.socket, selector: selectors.BaseSelector, callers: list[_Client]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    connection.setblocking(False)
    caller = _Client(JsonLines(connection), {}, time.monotonic())
    callers.append(caller)
    selector.register(connection, selectors.EVENT_READ, caller)


def _drop_stale(callers: list[_Client], selector: selectors.BaseSelector, now: float) -> None:
    """Close clients that have not identified themselves in time, and the oldest if there are too many."""
    unknown = [caller for caller in callers if not caller.message]
    for number, caller in enumerate(unknown, 1):
        if now - caller.since_s > INTRODUCTION_S or len(unknown) - number >= MAX_UNKNOWN:
            if caller.line.connection.fileno() in selector.get_map():
                selector.unregister(caller.line.connection)
            caller.line.close()
            callers.remove(caller)


def _identify(caller: _Client, selector: selectors.BaseSelector) -> bool:
    """Return whether the client has just identified itself; a client that disconnects earlier only tested the port."""
    try:
        message = caller.line.ready()
    except OSError:
        selector.unregister(caller.line.connection)
        caller.message = {}
        return False
    if caller.message or not message or type(message.get("rank")) is not int:
        return False
    caller.message = message
    return True


def _contradiction(
    own_entry: dict[str, Any], caller: _Client, callers: list[_Client], expected: Sequence[int], common: Sequence[str]
) -> dict[str, Any]:
    """Return the contradiction between this client's report and earlier ones; empty if there is none."""
    message = caller.message
    where = str(message.get("host", "?"))
    for name in common:
        if message.get(name) != own_entry.get(name):
            mine = "{} (rank {} on {})".format(own_entry.get(name), own_entry["rank"], own_entry["host"])
            return {
                "what": name,
                "theirs": "{} (rank {} on {})".format(message.get(name), message["rank"], where),
                "mine": mine,
            }
    twice = [other for other in callers if other is not caller and other.message.get("rank") == message["rank"]]
    if twice or message["rank"] == own_entry["rank"]:
        first = str(twice[0].message.get("host", "?")) if twice else own_entry["host"]
        return {"what": "rank", "theirs": "rank %d on %s" % (message["rank"], where), "mine": f"the same on {first}"}
    if message["rank"] not in expected:
        return {
            "what": "rank",
            "theirs": "rank %d on %s" % (message["rank"], where),
            "mine": f"one of {list(expected)}",
        }
    return {}


def _send_all(callers: Sequence[_Client], **message: Any) -> None:
    for caller in callers:
        try:
            caller.line.send(**message)
        except OSError:
            continue


def _close(callers: Sequence[_Client]) -> None:
    for caller in callers:
        caller.line.close()


def _mismatch(progress: Progress, contradiction: dict[str, Any]) -> None:
    what, mine, theirs = (str(contradiction[name]) for name in ("what", "mine", "theirs"))
    text = f"processes of one run disagree: {what} is {theirs} and {mine}"
    progress.send(
        rank_events.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=progress.rank
    )
    raise ProbeUnavailable("denied", text)
