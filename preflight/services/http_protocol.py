"""HTTP for our servers: a connection that sends no request ends soon.

uvicorn counts every open connection against its limit, and waits without limit for the first request of each. A few
hundred silent connections would shut everybody else out.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds for the head of a request: from the connection, or from the first byte after the last answer.
HEAD_S = 5.0


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn that ends a connection whose request has no complete head within `HEAD_S`."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the wait ends with the head of a request, not with its first bytes."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_waiting = self.cycle is None or self.cycle.response_complete
        if not is_waiting:
            self._stop()
        elif self._timer is None:
            # Not `close`: with TLS that waits for the other side, and there is nothing to send.
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
