"""Access to our servers: a token from a file that only its owner can read, session cookies, and HTTP for both.

uvicorn counts every open connection against its limit, and waits without limit for the first request of each. A few
hundred silent connections would shut everybody else out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from uvicorn.protocols.http.h11_impl import H11Protocol

from preflight._util.usage_error import UsageError

#: Shorter tokens can be guessed.
MIN_LENGTH = 16
MAX_LENGTH = 1024


def read_token(file: Path, option: str) -> str:
    """Return the token in the file of `option`. Raises UsageError if it is invalid or everybody can read it."""
    where = f"{option} {file}"
    try:
        if file.stat().st_mode & stat.S_IROTH:
            raise UsageError(f"{where}: everyone on this machine can read it; run: chmod 600 {file}")
        with file.open("rb") as stream:
            token = stream.read(4 * MAX_LENGTH).decode("utf-8", "replace").strip()
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    return checked_token(token, where)


def checked_token(token: str, where: str) -> str:
    """Return the token. Raises UsageError if it is too short, too long, or not printable."""
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH or not token.isprintable():
        raise UsageError(
            f"{where}: expected one line of {MIN_LENGTH} to {MAX_LENGTH} characters, found {len(token)}; `openssl "
            "rand -hex 24` creates one"
        )
    return token


#: The environment variable with the token.
VARIABLE = "PREFLIGHT_SERVE_TOKEN"
COOKIE = "preflight_session"
#: Lifetime of a login.
SESSION_S = 12 * 3600


class Access:
    """Compares tokens, and makes cookies that only this process accepts. Without a token, the page is public."""

    def __init__(self, token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._token = _digest(token) if token else b""
        self._key = secrets.token_bytes(32)
        self._clock = clock

    @property
    def required(self) -> bool:
        """Return whether a token is needed."""
        return bool(self._token)

    def is_token(self, text: str) -> bool:
        """Return whether `text` is the token. The duration of the comparison does not depend on the argument."""
        return bool(self._token) and hmac.compare_digest(_digest(text), self._token)

    def new_session(self) -> str:
        """Return the value of a cookie. It does not contain the token."""
        until = str(int(self._clock()) + SESSION_S)
        return f"{until}.{self._signature(until)}"

    def is_session(self, cookie: str) -> bool:
        """Return whether this process made the cookie and it has not expired."""
        until, _, signature = cookie.partition(".")
        if not hmac.compare_digest(_digest(signature), _digest(self._signature(until))):
            return False
        return int(until) > self._clock()

    def allows(self, *, cookie: str, authorization: str) -> bool:
        """Return whether a request with this cookie, or this header for programs (`Bearer TOKEN`), may see the page."""
        return not self.required or self.is_session(cookie) or self.is_token(_bearer(authorization))

    def is_guess(self, *, cookie: str, authorization: str) -> bool:
        """Return whether a request contains a wrong token and is not allowed for any other reason."""
        return bool(_bearer(authorization)) and not self.allows(cookie=cookie, authorization=authorization)

    def _signature(self, until: str) -> str:
        return hmac.new(self._key, until.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _bearer(authorization: str) -> str:
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _digest(text: str) -> bytes:
    # Digests have equal lengths, so that a comparison does not reveal the length of the token.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def token_of(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the token from a file or the environment, else empty. Raises UsageError."""
    if file is not None:
        return read_token(file, "--token-file")
    token = environment.get(VARIABLE, "").strip()
    return checked_token(token, VARIABLE) if token else ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_name(host: str) -> bool:
    """Return whether a `Host` header is a loopback address of this machine, with or without a port.

    Without a token, a hostile page could otherwise give its own name the address 127.0.0.1, and read ours.
    """
    if host.startswith("["):
        return is_loopback(host[1:].partition("]")[0])
    return is_loopback(host.partition(":")[0])


#: Time limit in seconds for the head of a request: from the connection, or from the first byte after the last answer.
HEAD_S = 5.0


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol that ends a connection whose request has no complete head within `HEAD_S`."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Receive bytes; the wait ends with the head of a request, not with its first bytes."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, which is closed."""
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
