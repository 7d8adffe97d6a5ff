"""A program in a container, over the exec subresource of the API server.

Its websocket carries one byte of channel before each message (`v4.channel.k8s.io`; with `v5`, 255 closes a channel):
kubernetes/apimachinery, pkg/util/remotecommand/constants.go.
"""

from __future__ import annotations

import select
import threading
from typing import Any, Dict, Optional, Tuple

from preflight.executors.bridge.kubernetes_errors import json_object
from preflight.executors.bridge.mux import Stream

STDIN, STDOUT, STDERR, STATUS, CLOSE_SIGNAL = 0, 1, 2, 3, 255
_V5 = "v5.channel.k8s.io"
#: Largest message; API servers accept megabytes, proxies in front of them often less.
_MESSAGE_BYTES = 256 * 1024
_STDERR_BYTES = 8192
#: How long a program may take to exit after its standard input is closed.
_LEAVE_S = 1.0


class ExecStream(Stream):
    """One program in a container."""

    def __init__(self, sock: Any) -> None:
        """Take over a websocket after its handshake (websocket-client's `WebSocket`)."""
        self._sock = sock
        self._sock.settimeout(20.0)
        # TLS connections must not be read and written at the same time.
        self._socket_lock = threading.Lock()
        self._stderr = b""
        self._status: Dict[str, Any] = {}
        self._problem = ""
        self._closed = False
        self._ended = False

    def read(self) -> bytes:
        """Return the next bytes of standard output; empty once the program or the connection ended."""
        while not self._ended:
            message = self._message()
            if message is None:
                return b""
            channel, data = message[:1], message[1:]
            if channel == bytes([STDOUT]) and data:
                return data
            if channel == bytes([STDERR]):
                self._stderr = (self._stderr + data)[-_STDERR_BYTES:]
            elif channel == bytes([STATUS]):
                self._status = json_object(data)
                return b""
        return b""

    def _message(self) -> Optional[bytes]:
        """Return the next message; empty if there was none for the stream, None at the end."""
        from websocket import ABNF, WebSocketException

        try:
            inner = self._sock.sock
            if inner is None:
                return None
            if not (hasattr(inner, "pending") and inner.pending()):
                poll = select.poll()
                poll.register(inner, select.POLLIN)
                if not poll.poll(1000):
                    return b""
            with self._socket_lock:
                kind, frame = self._sock.recv_data_frame(True)
        except (WebSocketException, OSError, ValueError, AttributeError) as error:
            self._problem = self._problem or ("" if self._closed else str(error))
            return None
        if kind == ABNF.OPCODE_CLOSE:
            return None
        return bytes(frame.data) if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) else b""

    def write(self, data: bytes) -> None:
        """Write to the program's standard input."""
        from websocket import ABNF

        for start in range(0, len(data), _MESSAGE_BYTES):
            with self._socket_lock:
                self._sock.send(bytes([STDIN]) + data[start : start + _MESSAGE_BYTES], opcode=ABNF.OPCODE_BINARY)

    def exit_state(self) -> Tuple[Optional[int], str]:
        """Return the exit code from the container runtime, and the end of standard error."""
        words = self._stderr.decode("utf-8", "replace").strip()
        if not self._status:
            return None, "\n".join(filter(None, (words, self._problem)))
        if self._status.get("status") == "Success":
            return 0, words
        causes = (self._status.get("details") or {}).get("causes") or []
        codes = [cause.get("message", "") for cause in causes if cause.get("reason") == "ExitCode"]
        if codes and str(codes[0]).isdecimal():
            return int(codes[0]), words
        return None, "\n".join(filter(None, (words, str(self._status.get("message", "")))))

    def close(self) -> None:
        """Close standard input if the server can, and the connection soon after; the program notices either."""
        if self._closed:
            return
        self._closed = True
        if self._sock.subprotocol == _V5:
            from websocket import ABNF

            try:
                with self._socket_lock:
                    self._sock.send(bytes([CLOSE_SIGNAL, STDIN]), opcode=ABNF.OPCODE_BINARY)
                # `read` continues until the program's exit code arrives.
                timer = threading.Timer(_LEAVE_S, self._disconnect)
                timer.daemon = True
                timer.start()
                return
            except Exception:
                pass
        self._disconnect()

    def _disconnect(self) -> None:
        self._ended = True
        try:
            self._sock.shutdown()
        except Exception:
            pass
