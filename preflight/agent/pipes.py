"""The agent's descriptors: reading without blocking, and writing whole frames in order."""

from __future__ import annotations

import os
import selectors
import time

from preflight.agent.wire import Done, Failed, WireError, encode_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence


CHUNK_BYTES = 65536


def read(fd: int) -> Optional[bytes]:
    """The available data; empty at the end, None when there is nothing yet."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def readable(fd: int) -> bool:
    """Whether `read` would return something, including the end."""
    with selectors.SelectSelector() if fd < 1024 else selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


#: With more unsent bytes than this, children are not read.
BACKLOG_BYTES = 8 << 20


class FrameWriter:
    """Writes frames to the head's end of the channel.

    It calls `on_lost` with the reason when the channel cannot be written any more, and `on_full` after each write with
    whether too many bytes are still unsent.
    """

    def __init__(
        self, fd: int, selector: selectors.BaseSelector, on_lost: Callable[[str], None], on_full: Callable[[bool], None]
    ) -> None:
        self._fd = fd
        self._selector = selector
        self._on_lost = on_lost
        self._on_full = on_full
        self._outgoing = bytearray()
        #: When something was last sent.
        self.last_sent_s = time.monotonic()

    def send(self, messages: Sequence[Any]) -> None:
        """Send these frames, at once if possible."""
        for message in messages:
            self._outgoing += _frame(message)
        self.last_sent_s = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._fd, self._outgoing[: 1 << 20])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_lost("the channel cannot be written: %s" % error)
            return
        watch_writable(self._selector, self._fd, self._flush if self._outgoing else None)
        self._on_full(len(self._outgoing) > BACKLOG_BYTES)


def _frame(message: Any) -> bytes:
    """The frame of a message; for an answer that is too large, the frame of a failure that reports its size."""
    try:
        return encode_answer(message)
    except WireError as error:
        if isinstance(message, (Done, Failed)):
            return encode_answer(Failed(message.id, "crashed", "the answer cannot be sent: %s" % error))
        return b""


def watch_writable(selector: selectors.BaseSelector, fd: int, callback: Optional[Callable[[], None]]) -> None:
    """Call back when the descriptor accepts more; with None, stop watching."""
    watched = fd in selector.get_map()
    if callback is not None and not watched:
        selector.register(fd, selectors.EVENT_WRITE, callback)
    elif callback is None and watched:
        selector.unregister(fd)
