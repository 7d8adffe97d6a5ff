"""A program in a container, over the exec subresource of the API server.

Its websocket carries one byte of channel before each message (`v4.channel.k8s.io`; with `v5`, 255 closes a channel):
kubernetes/apimachinery, pkg/util/remotecommand/constants.go.

Error messages of the API server and of the connection to it, with what to do.
"""

from __future__ import annotations

import json
import re
import select
import threading
from typing import Any

from preflight.executors.bridge.mux import BridgeError, Stream

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
        self._status: dict[str, Any] = {}
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

    def _message(self) -> bytes | None:
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

    def exit_state(self) -> tuple[int | None, str]:
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


def explain_api_error(to: str, status: int, body: str) -> BridgeError:
    """Explain an error answer of the API server."""
    message = str(json_object(body.encode()).get("message") or body.strip()[:300] or "nothing")
    words = 'the API server refused to %s: "%s" (HTTP %d)' % (to, message, status)
    if status == 401:
        return BridgeError(
            "denied", words + "; the login is missing or has expired: `kubectl auth whoami`", body[:4000]
        )
    if status == 403:
        return BridgeError("denied", words + "; " + _grant(message), body[:4000])
    if status == 404:
        return BridgeError("missing", words, body[:4000])
    if status in (409, 422, 400):
        return BridgeError("blocked", words, body[:4000])
    return BridgeError("unreachable", words, body[:4000])


def _grant(message: str) -> str:
    """Return what to grant, from RBAC's message (kubernetes/apiserver, handlers/responsewriters/errors.go)."""
    match = re.search(
        r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?', message
    )
    if match is None:
        return "ask for that permission"
    verb, resource, group, namespace = match.groups()
    where = f"-n {namespace}" if namespace else "--all-namespaces"
    kind, full = ("role", where) if namespace else ("clusterrole", "")
    plural = f"{resource}.{group}" if group else resource
    words = f"kubectl create {kind} preflight {full} --verb={verb} --resource={plural}"
    return "`kubectl auth can-i {} {} {}` checks this; grant it with `{}` and a binding".format(
        verb,
        plural,
        where,
        " ".join(words.split()),
    )


def explain_connection_error(to: str, host: str, message: str) -> BridgeError:
    # urllib3 wraps one error into another; the innermost is what happened.
    inner = re.findall(r"Caused by \w+\((.*)\)", message)
    last = (inner[-1] if inner else message).strip()
    last = re.sub(r"<[^>]*>:?\s*|^[\"']|[\"']$", "", last)
    kind = "timeout" if re.search(r"timed out", message, re.IGNORECASE) else "unreachable"
    return BridgeError(
        kind,
        f"the API server {host} cannot be reached to {to}: {last}; does `kubectl get pods` work here?",
        message,
    )


_HANDSHAKE = re.compile(r"Handshake status (\d+)")


def explain_exec_error(pod: str, message: str) -> BridgeError:
    """Explain why a program could not be started in a pod, from websocket-client's message about the handshake.

    That is "Handshake status 403 Forbidden -+-+- {headers} -+-+- b'{body}'" (websocket/_handshake.py).
    """
    match = _HANDSHAKE.search(message)
    if match is not None:
        body = message.rpartition("-+-+-")[2].strip()
        quoted = re.fullmatch(r"b(['\"])(.*)\1", body, re.DOTALL)
        if quoted:
            body = quoted[2].encode("latin-1", "replace").decode("unicode_escape")
        trouble = explain_api_error(f"start a program in the pod {pod}", int(match[1]), body)
        return BridgeError(trouble.kind, trouble.message, message[:4000])
    kind = "timeout" if "timed out" in message.lower() else "unreachable"
    return BridgeError(kind, f"no program can be started in the pod {pod}: {message[:300]}", message[:4000])


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty if `data` is not one."""
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
