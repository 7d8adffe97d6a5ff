"""Connections between rank 0 and all others, for ranks without the store of torch: who failed, and the verdict."""

from __future__ import annotations

import selectors
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from reference_trainer.common.assembly import JsonLines

_POLL_S = 0.05


class PeerLines:
    """The connections of one rank: from rank 0 to all others, from each other to rank 0.

    Args:
        on_failure: called once with the reason when another rank failed, or its process ended before its report.
    """

    def __init__(self, rank: int, host: str, lines: Dict[int, JsonLines], on_failure: Callable[[str], None]) -> None:
        self._rank = rank
        self._lines = lines
        self._on_failure = on_failure
        self._hosts: Dict[int, str] = {}
        self._reports: Dict[int, Dict[str, Any]] = {}
        self._verdict: Optional[Dict[str, Any]] = None
        self._closed = False
        #: Why another rank failed; empty as long as none did.
        self.reason = ""
        for line in lines.values():
            line.connection.setblocking(False)
        if rank:
            self._send(0, host=host)
        threading.Thread(target=self._read, name="preflight-peers", daemon=True).start()

    def fail(self, reason: str) -> None:
        """Tell the others why the run ends, from rank 0 or through it."""
        self._closed = True
        for other in self._lines:
            self._send(other, failure=reason)

    def finish(self, summary: Dict[str, Any], wait_s: float) -> Dict[int, Dict[str, Any]]:
        """On rank 0, the summaries of all other ranks that report in time; elsewhere, send one."""
        if self._rank:
            self._send(0, report=summary)
            return {}
        self._wait(lambda: len(self._reports) == len(self._lines), wait_s)
        return dict(self._reports)

    def publish(self, go: bool, why: List[str]) -> None:
        """Send the verdict to all ranks."""
        self._closed = True
        for other in self._lines:
            self._send(other, verdict={"go": go, "why": why})

    def await_verdict(self, wait_s: float) -> Optional[Dict[str, Any]]:
        """The verdict of rank 0; None if there is none in time."""
        self._wait(lambda: self._verdict is not None, wait_s)
        return self._verdict

    def _wait(self, done: Callable[[], bool], wait_s: float) -> None:
        ends = time.monotonic() + wait_s
        while not done() and not self.reason and time.monotonic() < ends:
            time.sleep(_POLL_S)

    def _send(self, other: int, **message: Any) -> None:
        try:
            self._lines[other].send(**message)
        except OSError:
            pass  # its end is read from the same connection

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for other, line in self._lines.items():
                selector.register(line.connection, selectors.EVENT_READ, other)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._take(key.data):
                        selector.unregister(key.fileobj)

    def _take(self, other: int) -> bool:
        """Handle what a rank has sent; False at the end of its connection."""
        try:
            while True:
                message = self._lines[other].ready()
                if message is None:
                    return True
                self._handle(other, message)
        except OSError:
            done = self._verdict is not None if self._rank else other in self._reports
            if not done and not self._closed:
                host = self._hosts.get(other, "")
                self._failed("rank %d%s: its process ended" % (other, " on " + host if host else ""), other)
            return False

    def _handle(self, other: int, message: Dict[str, Any]) -> None:
        if "host" in message:
            self._hosts[other] = str(message["host"])
        if isinstance(message.get("report"), dict):
            self._reports[other] = message["report"]
        if isinstance(message.get("verdict"), dict):
            self._verdict = message["verdict"]
        if "failure" in message:
            self._failed(str(message["failure"]), other)

    def _failed(self, reason: str, origin: int) -> None:
        if self.reason:
            return
        self.reason = reason
        if not self._rank:
            for other in self._lines:
                if other != origin:
                    self._send(other, failure=reason)
        if not self._closed:
            self._on_failure(reason)
