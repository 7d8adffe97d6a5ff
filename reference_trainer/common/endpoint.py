"""Tests the master's endpoint with plain TCP, before a library hides the result.

Every framework reports "timed out", whether the port is closed or filtered or the name does not resolve. Rank 0 listens
before torch is imported, so the others know within a second whether they can reach it.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

#: Time limit of one attempt to connect; a SYN that is lost is sent again after one second (RFC 6298).
ATTEMPT_S = 2.5
#: Between attempts: rank 0 may still be starting.
RETRY_S = 0.2


@dataclass(frozen=True)
class DialResult:
    """One attempt: `result` is `open`, `refused`, `timed-out`, `unresolved`, `unreachable` or `failed`."""

    result: str
    error: str = ""
    address: str = ""
    source: str = ""
    seconds: float = 0.0


def listen(port: int, host: str = "") -> socket.socket:
    """Listen on `port`, at the address `host` or, like the store, on every interface.

    Raises OSError (EADDRINUSE, EACCES, EADDRNOTAVAIL) naming the port.
    """
    if host:
        return _listen_at(host, port)
    try:
        return _listen(socket.AF_INET6, port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise OSError(error.errno, "cannot listen on port %d: %s" % (port, os.strerror(error.errno))) from None
    try:
        return _listen(socket.AF_INET, port)
    except OSError as error:
        code = error.errno or 0
        raise OSError(code, "cannot listen on port %d: %s" % (port, os.strerror(code))) from None


def _listen_at(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _listen(family, port, str(address[0]))
    except OSError as error:
        text = error.strerror or str(error)
        raise OSError(error.errno or 0, "cannot listen on %s port %d: %s" % (host, port, text)) from None


def _listen(family: int, port: int, host: str = "") -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host or ("::" if family == socket.AF_INET6 else "0.0.0.0"), port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def dial(host: str, port: int, *, timeout_s: float = ATTEMPT_S) -> DialResult:
    """Try once to open a connection, and classify the result."""
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return DialResult("unresolved", "%s: %s" % (host, getattr(error, "strerror", None) or error))
    last = DialResult("unresolved", "%s has no address" % host)
    for family, kind, protocol, _, address in found:
        last = _attempt(family, kind, protocol, address, began, timeout_s)
        if last.result == "open":
            return last
    return last


def _attempt(
    family: int, kind: int, protocol: int, address: Tuple[object, ...], began: float, timeout_s: float
) -> DialResult:
    where = str(address[0])
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(address)
        except socket.timeout:
            result, text = "timed-out", "no answer within %.1f s" % timeout_s
        except OSError as error:
            result, text = _why(error.errno), error.strerror or str(error)
        else:
            source = str(connection.getsockname()[0])
            return DialResult("open", "", where, source, time.monotonic() - began)
    return DialResult(result, "%s port %s: %s" % (where, address[1], text), where, "", time.monotonic() - began)


def _why(code: Optional[int]) -> str:
    if code == errno.ECONNREFUSED:
        return "refused"
    if code == errno.ETIMEDOUT:
        return "timed-out"
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN):
        return "unreachable"
    return "failed"


def dial_until(
    host: str,
    port: int,
    *,
    timeout_s: float,
    on_dialled: Callable[[DialResult], None],
    pause: Callable[[float], None] = time.sleep,
) -> DialResult:
    """Retry until it opens or `timeout_s` has passed; `on_dialled` is called with each new result."""
    ends = time.monotonic() + timeout_s
    before = ""
    while True:
        outcome = dial(host, port)
        if outcome.result != before:
            on_dialled(outcome)
            before = outcome.result
        if outcome.result == "open" or time.monotonic() >= ends:
            return outcome
        pause(RETRY_S)


def own_address(host: str, port: int, interface: str = "") -> str:
    """The address that this machine will use: that of `interface`, otherwise the one that routes to `host`.

    Empty if unknown. Nothing is sent: connecting a datagram socket only queries the routing table.
    """
    if interface:
        return _interface_address(interface)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _interface_address(interface: str) -> str:
    import fcntl
    import struct

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR, linux/sockios.h
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
