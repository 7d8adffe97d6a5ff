"""What the agent says to the head: whole frames in order, as fast as the channel takes them."""

from __future__ import annotations

import os
import selectors
import time

from preflight.node.wire import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence

#: With more than this to be said, children are not listened to.
BACKLOG_BYTES = 8 << 20


class Outlet:
    """`ended` is told why the channel cannot be written any more, `full` whether it takes nothing at the moment."""

    def __init__(
        self,
        fd: int,
        selector: selectors.BaseSelector,
        ended: Callable[[str], None],
        full: Callable[[bool], None],
    ) -> None:
        self._fd = fd
        self._selector = selector
        self._ended = ended
        self._full = full
        self._outgoing = bytearray()
        #: When something was last said.
        self.spoke_s = time.monotonic()

    def send(self, messages: Sequence[Any]) -> None:
        """Say these, at once if possible."""
        for message in messages:
            self._outgoing += encode(message)
        self.spoke_s = time.monotonic()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._fd, self._outgoing[: 1 << 20])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._ended("the channel cannot be written: %s" % error)
            return
        watch_writable(self._selector, self._fd, self._flush if self._outgoing else None)
        self._full(len(self._outgoing) > BACKLOG_BYTES)


def watch_writable(selector: selectors.BaseSelector, fd: int, callback: Optional[Callable[[], None]]) -> None:
    """Call back when the descriptor takes more; with None, no longer."""
    watched = fd in selector.get_map()
    if callback is not None and not watched:
        selector.register(fd, selectors.EVENT_WRITE, callback)
    elif callback is None and watched:
        selector.unregister(fd)
