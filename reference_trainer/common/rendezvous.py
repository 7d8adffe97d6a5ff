"""Joins the others at the master's store, or reports why not, after a test of its endpoint with plain TCP.

Frameworks report "timed out" whether the port is closed or filtered or the name does not resolve. So the port is bound
and dialled before torch is imported; ranks of another run or size, or with the same number, are detected at the store.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common.progress import Progress

#: Waits on the store are divided into pieces of this length, so that a rank can report which ranks are still missing.
_SLICE_S = 1.0


def open_listener(params: dict[str, Any], progress: Progress) -> socket.socket | None:
    """Bind the master port on rank 0 early, to find a port in use; not if the launcher serves the store itself."""
    if progress.rank != 0 or params.get("agent_store"):
        return None
    port = int(params["master_port"])
    try:
        listener = listen(port)
    except OSError as error:
        kind = "in-use" if error.errno == errno.EADDRINUSE else "denied"
        progress.send(
            rank_events.PROBLEM, problem="listen", result=kind, port=port, error=error.strerror or str(error), rank=0
        )
        raise ProbeUnavailable("denied", error.strerror or str(error)) from None
    progress.send(rank_events.PHASE, phase=rank_events.LISTENING, details={"port": port})
    return listener


class MasterDialer:
    """Dials the master's port while torch is imported, so that a closed port is reported early."""

    def __init__(self, params: dict[str, Any], progress: Progress, timeout_s: float) -> None:
        self._host, self._port = str(params["master_addr"]), int(params["master_port"])
        self._progress = progress
        self._timeout_s = timeout_s
        self._outcome = DialResult("failed", "it was not tried")
        self._thread = threading.Thread(target=self._run, name="preflight-dial", daemon=True)
        self._thread.start()

    def result(self) -> DialResult:
        """Return the last result, after the port has opened or time has run out."""
        self._thread.join(self._timeout_s + 2 * ATTEMPT_S)
        return self._outcome

    def _run(self) -> None:
        self._outcome = dial_until(self._host, self._port, timeout_s=self._timeout_s, on_dialled=self._on_dialled)

    def _on_dialled(self, dialled: DialResult) -> None:
        report_dial(self._progress, dialled, to=0, endpoint=f"{self._host}:{self._port}")


def report_dial(progress: Progress, dialled: DialResult, **target: Any) -> None:
    """Report one attempt to reach a process: `to` is its number, `endpoint` its address."""
    progress.send(
        rank_events.DIAL,
        rank=progress.rank,
        result=dialled.result,
        error=dialled.error,
        address=dialled.address,
        source=dialled.source,
        seconds=round(dialled.seconds, 4),
        **target,
    )


def await_master(params: dict[str, Any], progress: Progress, dialling: MasterDialer) -> None:
    """Wait until the master's port accepts a connection. Raises ProbeUnavailable with the failure."""
    host, port = str(params["master_addr"]), int(params["master_port"])
    progress.entering(f"connection to the master {host}:{port}", waiting_for=[] if progress.rank == 0 else [0])
    reached = dialling.result()
    if reached.result != "open":
        raise ProbeUnavailable(
            "timeout",
            "rank %d cannot reach the master %s:%d (%s): %s"
            % (progress.rank, host, port, reached.result, reached.error),
        )
    progress.left()


def join_store(
    dist: Any,
    params: dict[str, Any],
    progress: Progress,
    listener: socket.socket | None,
    dialling: MasterDialer,
    timeout_s: float,
    obstacle: str = "",
) -> Any:
    """Connect to the master's store and wait there for all ranks.

    Args:
        obstacle: why this rank cannot use NCCL, for `agree_on_backend`.

    `params` may hold `store_prefix`, if others use the store too, and `on_store`, which is called with the store before
    anything is written to it.
    """
    host, port = str(params["master_addr"]), int(params["master_port"])
    world_size = int(params["world_size"])
    store = None
    if listener is not None:
        store = _own_store(dist, host, port, listener, timeout_s)
    await_master(params, progress, dialling)
    if store is None:
        progress.entering(f"store of the master {host}:{port}", waiting_for=[0])
        store = dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), False)
        progress.left()
    if params.get("store_prefix"):
        store = dist.PrefixStore(str(params["store_prefix"]), store)
    if params.get("on_store") is not None:
        params["on_store"](store)
    _publish_identity(store, params, progress, world_size, obstacle)
    progress.entering("all ranks to reach the store", waiting_for=[r for r in range(world_size) if r != progress.rank])
    ends = time.monotonic() + timeout_s
    missing = [r for r in range(world_size) if r != progress.rank]
    while missing:
        missing = _await_some(store, missing)
        progress.waits_for(missing)
        if missing and time.monotonic() >= ends:
            raise ProbeUnavailable("timeout", f"ranks {missing} did not reach the store within {timeout_s:g} s")
    progress.left()
    return store


def _own_store(dist: Any, host: str, port: int, listener: socket.socket, timeout_s: float) -> Any:
    patience = timedelta(seconds=timeout_s)
    try:
        store = dist.TCPStore("127.0.0.1", port, None, True, patience, False, master_listen_fd=listener.fileno())
    except TypeError:  # a torch that cannot take over a socket
        listener.close()
        return dist.TCPStore(host, port, None, True, patience, False)
    listener.detach()
    return store


def _publish_identity(store: Any, params: dict[str, Any], progress: Progress, world_size: int, obstacle: str) -> None:
    """Publish this rank's identity and compare it with the others'; a mismatch is reported and ends the rank."""
    own = {"world_size": world_size, "run_id": str(params.get("run_id", "")), "host": socket.gethostname()}
    if store.add(f"preflight/claimed/{progress.rank}", 1) > 1:
        _mismatch(progress, "rank", f"rank {progress.rank}", "the same, by another process", progress.rank)
    first = json.loads(store.compare_set("preflight/run", "", json.dumps(own)).decode())
    for name in ("world_size", "run_id"):
        if first[name] != own[name]:
            _mismatch(
                progress, name, own[name], "{} (first reported on {})".format(first[name], first["host"]), progress.rank
            )
    if obstacle:
        first = f"rank {progress.rank} on {own['host']} {obstacle}"
        store.compare_set("preflight/obstacle", "", first)
        store.add("preflight/obstacles", 1)
    store.set(f"preflight/here/{progress.rank}", "1")


def agree_on_backend(
    store: Any, progress: Progress, wanted_backend: str, world_size: int, obstacle: str
) -> tuple[str, str]:
    """Return the backend of all ranks, the same on each of them; called after `join_store`, so that all obstacles are
    known.

    Args:
        wanted: `nccl`, `gloo`, or `auto`: nccl if every rank can use it, otherwise gloo.
        obstacle: why this rank cannot use NCCL, as passed to `join_store`; empty if it can.

    Returns the backend with a note, which names the first rank without a GPU if others have one. Raises
    ProbeUnavailable if nccl is wanted and not every rank can use it: `missing` on a rank that cannot, `blocked` on all
    others.
    """
    without = int(store.add("preflight/obstacles", 0)) if wanted_backend != "gloo" else world_size
    if wanted_backend == "gloo" or not without:
        return ("gloo" if wanted_backend == "gloo" else "nccl"), ""
    if wanted_backend == "nccl" and obstacle:
        raise ProbeUnavailable("missing", f"backend nccl is requested, but {obstacle}")
    first = store.get("preflight/obstacle").decode()
    if wanted_backend == "nccl":
        raise ProbeUnavailable("blocked", f"backend nccl is requested, but on {first}")
    if without == world_size:
        return "gloo", ""
    return "gloo", "gloo on all ranks, because %d of %d cannot use nccl: on %s" % (without, world_size, first)


def _mismatch(progress: Progress, what: str, mine: Any, theirs: Any, rank_: int) -> None:
    text = f"this rank has {what} {mine}, but another rank with the same master has {theirs}"
    progress.send(rank_events.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=rank_)
    raise ProbeUnavailable("denied", text)


def _await_some(store: Any, missing: list[int]) -> list[int]:
    """Return the ranks in `missing` that are still missing after a brief wait for the first of them."""
    try:
        store.wait([f"preflight/here/{missing[0]}"], timedelta(seconds=_SLICE_S))
    except Exception as error:
        if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
            raise
    return [other for other in missing if not store.check([f"preflight/here/{other}"])]


#: Time limit of one attempt to connect; a SYN that is lost is sent again after one second (RFC 6298).
ATTEMPT_S = 2.5
#: Pause between attempts, because rank 0 may still be starting.
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
    """Listen on `port` at `host` or every interface. Raises OSError (EADDRINUSE, EACCES, EADDRNOTAVAIL)."""
    if host:
        return _listen_at(host, port)
    try:
        return _listen(socket.AF_INET6, port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise OSError(error.errno, f"cannot listen on port {port}: {os.strerror(error.errno)}") from None
    try:
        return _listen(socket.AF_INET, port)
    except OSError as error:
        code = error.errno or 0
        raise OSError(code, f"cannot listen on port {port}: {os.strerror(code)}") from None


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
    """Try once to open a connection, and return the classified result."""
    started_at = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return DialResult("unresolved", "{}: {}".format(host, getattr(error, "strerror", None) or error))
    last = DialResult("unresolved", f"{host} has no address")
    for family, kind, protocol, _, address in found:
        last = _attempt(family, kind, protocol, address, started_at, timeout_s)
        if last.result == "open":
            return last
    return last


def _attempt(
    family: int, kind: int, protocol: int, address: tuple[object, ...], started_at: float, timeout_s: float
) -> DialResult:
    where = str(address[0])
    with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(address)
        except socket.timeout:
            result, text = "timed-out", f"no response within {timeout_s:.1f} s"
        except OSError as error:
            result, text = _why(error.errno), error.strerror or str(error)
        else:
            source = str(connection.getsockname()[0])
            return DialResult("open", "", where, source, time.monotonic() - started_at)
    return DialResult(result, f"{where} port {address[1]}: {text}", where, "", time.monotonic() - started_at)


def _why(code: int | None) -> str:
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
    """Dial until the port opens or `timeout_s` has passed; return the last result. `on_dialled` gets each new one."""
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
