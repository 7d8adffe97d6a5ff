"""A watchdog for a rank without an agent: it ends every wait, and finds the missing rank from the ranks' own posts.

Each rank posts its progress; a rank that is stuck too long looks for the one that is behind, and a rank that failed
posts the reason, so that the others end with that reason instead of "connection closed".
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict

from preflight.agent import rank_events
from reference_trainer.common.arrays import JsonLines
from reference_trainer.common.launcher_environment import LaunchedRank

#: Interval at which a rank posts its progress and looks for failures of others.
POLL_S = 0.5
#: A rank without new posts for this long is silent.
SILENT_S = 3.0
#: How long the rank that serves the store lets the others read the reason for the end.
_READ_WITHIN_S = 4.0
#: The longest time for loading libraries, whatever the heartbeats.
_LOADING_S = 240.0

State = Dict[str, Any]


class RankWatchdog:
    """The watchdog of one rank: its deadlines, and what it knows about the other ranks.

    Args:
        deadline_s: the limit for the whole run.
        stall_s: the limit for one step once all ranks have joined; joining has its own limit. Time in which the rank
            was ready but got no CPU does not count.
        print_line: prints a line for people.
        report: posts the failure: whether it is another rank's fault, and the lines.
        end: ends the process; `os._exit` by default, because the main thread may be stuck.
    """

    def __init__(
        self,
        place: LaunchedRank,
        *,
        deadline_s: float,
        stall_s: float,
        print_line: Callable[[str], None],
        report: Callable[[bool, list[str]], None],
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self._place = place
        self._deadline_s, self._stall_s = deadline_s, stall_s
        self._print_line, self._report, self._end = print_line, report, end
        self._began = time.monotonic()
        self._own: State = {"host": socket.gethostname(), "phase": "", "what": "", "collective": 0, "inside": False}
        self._since = self._began
        #: How long this rank has been starved of CPU time in all, and until its last progress.
        self._starved_s = self._starved_until_progress_s = 0.0
        self._beats = 0
        self._first: Any = None
        self._store: Any = None
        self._lines: PeerLines | None = None
        self._closing = False
        self._end_lock = threading.Lock()
        self._seen: dict[int, tuple[int, float, State]] = {}

    def start(self) -> None:
        """Start watching. A separate thread handles SIGTERM, because the main thread may be inside a library."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        for run in (self._run, self._await_signal):
            threading.Thread(target=run, name="preflight-watch", daemon=True).start()

    def on_event(self, event: dict[str, Any]) -> None:
        """Handle one event of the rank."""
        kind = event.get("event")
        own = self._own
        if kind == rank_events.BEAT:
            own["beat"] = event.get("beat", 0)
            return
        if kind == rank_events.PHASE and event.get("phase") in rank_events.ORDER:
            own["phase"], own["what"] = event["phase"], ""
        elif kind == rank_events.ENTERING:
            own["what"], own["waiting_for"] = event.get("what", ""), event.get("waiting_for", [])
            own["collective"] = event.get("collective", own["collective"])
            own["loading"] = bool(event.get("loading"))
        elif kind == rank_events.LEFT:
            own["what"], own["loading"] = "", False
        self._moved_at(time.monotonic())

    def on_heartbeat(self, event: dict[str, Any]) -> None:
        """Handle the progress in a heartbeat: consecutive steps are not reported individually."""
        if event.get("event") == rank_events.BEAT:
            self._starved_s = float(event.get("starved_s", self._starved_s))
            self._moved_at(time.monotonic() - float(event.get("since_s", 0.0)))
            self._own["collective"] = max(self._own["collective"], int(event.get("collective", 0)))
            self._own["what"] = event.get("what", "")

    def _moved_at(self, at_s: float) -> None:
        if at_s - self._since > POLL_S / 10:  # a heartbeat's own time of the last progress is not exact
            self._since, self._starved_until_progress_s = at_s, self._starved_s

    def on_store(self, store: Any) -> None:
        """Use the ranks' store, once it exists, through a separate connection, because the first may be busy."""
        import torch.distributed as dist

        self._first = store  # rank 0 serves it as long as a reference exists
        host, port = self._place.master_addr, self._place.master_port
        link = dist.TCPStore(host, port, None, False, timedelta(seconds=10), False)
        self._store = dist.PrefixStore("watch", dist.PrefixStore(self._place.prefix, link))
        if self._place.rank == 0:
            self._store.set("token", f"{time.time_ns():x}")

    def on_lines(self, lines: dict[int, JsonLines]) -> None:
        """Use these connections, from rank 0 to all others, if there is no store."""
        self._lines = PeerLines(self._place.rank, self._own["host"], lines, self.end_run)

    def token(self) -> str:
        """Return an identifier of this run; empty if rank 0 was never reached."""
        try:
            if self._store is not None and self._store.check(["token"]):
                return str(self._store.get("token").decode())
        except Exception:
            return ""
        return ""

    def failed(self, reason: str, *, consequence: bool) -> None:
        """Publish the reason why this rank failed, and end the process."""
        if consequence:
            culprit = self._await_culprit()
            if culprit:
                self.end_run(culprit)
        self.end_run(f"{self._name()}: {reason}")

    def finished(self, summary: dict[str, Any]) -> tuple[bool, list[str], list[dict[str, Any]]]:
        """Finish this rank; return the verdict, the reason if there is none, and (on rank 0) all summaries."""
        self._closing = True
        place, store = self._place, self._store
        if store is None:
            return self._finished_over_lines(summary)
        store.set(f"report/{place.rank}", json.dumps(summary))
        ends = time.monotonic() + self._stall_s
        if place.rank != 0:
            while not store.check(["verdict"]):
                self._look_for_failures()
                if time.monotonic() >= ends:
                    return False, [f"{self._name()}: rank 0 reported no verdict within {self._stall_s:.0f} s"], []
                time.sleep(0.05)
            verdict = json.loads(store.get("verdict").decode())
            store.add("read", 1)
            return bool(verdict["go"]), [str(each) for each in verdict["why"]], []
        reports: dict[int, dict[str, Any]] = {}
        while len(reports) < place.world_size:
            for rank in range(place.world_size):
                if rank not in reports and store.check([f"report/{rank}"]):
                    reports[rank] = json.loads(store.get(f"report/{rank}").decode())
            if len(reports) < place.world_size:
                self._look_for_failures()
                if time.monotonic() >= ends:
                    break
                time.sleep(0.05)
        why = [f"rank {r} did not report a result" for r in range(place.world_size) if r not in reports]
        for rank, each in sorted(reports.items()):
            why += ["rank %d on %s: %s" % (rank, each["host"], fault) for fault in each["faults"]]
        store.set("verdict", json.dumps({"go": not why, "why": why[:20]}))
        self._await_readers()
        return not why, why, [reports[rank] for rank in sorted(reports)]

    def _finished_over_lines(self, summary: dict[str, Any]) -> tuple[bool, list[str], list[dict[str, Any]]]:
        place, lines = self._place, self._lines
        why = [f"{self._name()}: {fault}" for fault in summary["faults"]]
        if lines is None:
            return not why, why, [summary]
        reports = {place.rank: summary, **lines.finish(summary, self._stall_s)}
        if place.rank != 0:
            verdict = lines.await_verdict(self._stall_s)
            if verdict is None:
                return False, [lines.reason or f"{self._name()}: rank 0 reported no verdict"], []
            return bool(verdict.get("go")), [str(each) for each in verdict.get("why", [])], []
        why = [f"rank {r} did not report a result" for r in range(place.world_size) if r not in reports]
        for rank, each in sorted(reports.items()):
            why += [f"rank {rank} on {each.get('host')}: {fault}" for fault in each.get("faults", [])]
        lines.publish(not why, why[:20])
        return not why, why, [reports[rank] for rank in sorted(reports)]

    def end_run(self, reason: str) -> None:
        """End the run with NO-GO: publish the reason, print it, write the report, and end the process immediately."""
        if not self._end_lock.acquire(False):
            time.sleep(_READ_WITHIN_S + 60)  # another thread is already ending the process
            return
        self._closing = True
        self._publish_reason(reason)
        own = reason.startswith(self._name() + ":")
        self._print_line(
            "{}: NO-GO{} {}".format(
                self._name(), ":" if own else " because of", reason[len(self._name()) + 2 :] if own else reason
            )
        )
        if self._place.rank == 0:
            self._print_line(f"NO-GO: {reason}")
        self._report(False, [reason])
        if self._place.rank == 0:
            self._await_readers()
        self._end(1)

    def _name(self) -> str:
        return f"rank {self._place.rank} on {self._own['host']}"

    def _run(self) -> None:
        while True:
            time.sleep(POLL_S)
            now = time.monotonic()
            try:
                self._post_progress()
                self._look_for_failures()
            except Exception as error:
                if not self._closing and self._place.rank != 0 and now - self._began > POLL_S:
                    self._on_store_lost(error)
            if self._closing:
                continue
            if now - self._began > self._deadline_s:
                self.end_run(self._describe_stall(f"did not end within {self._deadline_s:.0f} s"))
            limit = _LOADING_S if self._own.get("loading") else self._stall_s
            met = rank_events.position(self._own["phase"]) >= rank_events.position(rank_events.RENDEZVOUS)
            starved_s = self._starved_s - self._starved_until_progress_s
            if (met or self._own.get("loading")) and now - self._since - starved_s > limit:
                self.end_run(self._describe_stall(f"made no progress for {now - self._since:.0f} s"))

    def _on_store_lost(self, error: Exception) -> None:
        """Handle the loss of the store, which rank 0 or the launcher served."""
        time.sleep(SILENT_S)  # the main thread may have a better reason
        if not self._closing:
            message = str(error).strip().split("\n")[0]
            self.end_run(f"rank 0 ({self._place.master_addr}): its store is gone: {message}")

    def _await_signal(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self._closing:
            self._end(143)
        culprit = self._await_culprit()
        self.end_run(culprit or self._describe_stall("was terminated by SIGTERM"))

    def _post_progress(self) -> None:
        if self._store is not None:
            self._beats += 1
            self._store.set(f"at/{self._place.rank}", json.dumps({**self._own, "count": self._beats}))

    def _look_for_failures(self) -> None:
        """End if another rank has published a reason."""
        reason = self._failure()
        if reason:
            self.end_run(reason)

    def _failure(self) -> str:
        store = self._store
        if store is None or not store.check(["failure"]):
            return ""
        return str(store.get("failure").decode())

    def _publish_reason(self, reason: str) -> None:
        """Publish the reason if no rank has; otherwise confirm that this rank has read the published one."""
        if self._lines is not None:
            self._lines.fail(reason)
        try:
            if self._store is not None and self._store.compare_set("failure", "", reason).decode() != reason:
                self._store.add("read", 1)
            elif self._store is not None and self._place.rank != 0:
                self._store.add("read", 1)
        except Exception:
            return

    def _await_readers(self) -> None:
        """Serve the store briefly, until all ranks have read the reason."""
        ends = time.monotonic() + _READ_WITHIN_S
        try:
            while self._store is not None and time.monotonic() < ends:
                if self._store.add("read", 0) >= self._place.world_size - 1:
                    return
                time.sleep(0.05)
        except Exception:
            return

    def _await_culprit(self) -> str:
        """Return another rank's published reason, or a message about a silent rank; empty if there is neither."""
        ends = time.monotonic() + SILENT_S + 2 * POLL_S
        while self._lines is not None and time.monotonic() < ends:
            if self._lines.reason:
                return self._lines.reason
            time.sleep(POLL_S / 2)
        if self._store is None:
            return ""
        try:
            self._read_others()
            while self._store is not None and time.monotonic() < ends:
                reason = self._failure()
                if reason:
                    return reason
                time.sleep(POLL_S / 2)
                self._read_others()
            silent = self._silent_ranks()
        except Exception:
            return ""
        return "; ".join(silent)

    def _read_others(self) -> None:
        """Read the progress of the others, and note when it changed."""
        now = time.monotonic()
        for rank in range(self._place.world_size):
            if rank == self._place.rank or not self._store.check([f"at/{rank}"]):
                continue
            state = json.loads(self._store.get(f"at/{rank}").decode())
            before = self._seen.get(rank)
            if before is None or before[0] != state["count"]:
                self._seen[rank] = (state["count"], now, state)

    def _silent_ranks(self) -> list[str]:
        now = time.monotonic()
        return [
            f"rank {rank} on {state['host']}: it reported nothing for {now - at:.0f} s; its last activity was"
            f" {_activity(state)}"
            for rank, (_, at, state) in sorted(self._seen.items())
            if now - at >= SILENT_S
        ]

    def _describe_stall(self, what: str) -> str:
        """Describe why this rank is stuck: name the rank that is behind, judging by the posts of all."""
        own = f"{self._name()}: {what} at {_activity(self._own)}"
        if self._lines is not None:
            return own
        if self._store is None:
            return own + f", before it reached rank 0 at {self._place.master_addr}:{self._place.master_port}"
        try:
            self._read_others()
            time.sleep(SILENT_S + 2 * POLL_S)
            self._read_others()
        except Exception as error:
            return "{}, and the ranks' store is gone: {}".format(own, str(error).split("\n")[0])
        silent = self._silent_ranks()
        mine = int(self._own["collective"])
        slowest = [
            f"rank {rank} on {state['host']}, which is still at {_activity(state)}"
            for rank, (_, _, state) in sorted(self._seen.items())
            if int(state["collective"]) < mine
            or rank_events.position(state["phase"]) < rank_events.position(self._own["phase"])
        ]
        missing = [
            f"rank {rank}, which never connected"
            for rank in range(self._place.world_size)
            if rank != self._place.rank and rank not in self._seen
        ]
        waited = silent or missing or slowest
        return "{}; it waits for {}".format(own, "; ".join(waited[:8])) if waited else own


def _activity(state: State) -> str:
    return str(state.get("what") or rank_events.ACTIVITIES.get(state.get("phase", ""), "") or "its start")


_POLL_S = 0.05


class PeerLines:
    """The connections of one rank (rank 0: to all others); `on_failure` gets the reason of another's failure."""

    def __init__(self, rank: int, host: str, lines: dict[int, JsonLines], on_failure: Callable[[str], None]) -> None:
        self._rank = rank
        self._lines = lines
        self._on_failure = on_failure
        self._hosts: dict[int, str] = {}
        self._reports: dict[int, dict[str, Any]] = {}
        self._verdict: dict[str, Any] | None = None
        self._closed = False
        #: Why another rank failed; empty as long as none did.
        self.reason = ""
        for line in lines.values():
            line.connection.setblocking(False)
        if rank:
            self._send(0, host=host)
        threading.Thread(target=self._read, name="preflight-peers", daemon=True).start()

    def fail(self, reason: str) -> None:
        """Tell the others why the run ends, directly or through rank 0."""
        self._closed = True
        for other in self._lines:
            self._send(other, failure=reason)

    def finish(self, summary: dict[str, Any], wait_s: float) -> dict[int, dict[str, Any]]:
        """On rank 0, return the summaries of all other ranks that report in time; elsewhere, send one."""
        if self._rank:
            self._send(0, report=summary)
            return {}
        self._wait(lambda: len(self._reports) == len(self._lines), wait_s)
        return dict(self._reports)

    def publish(self, go: bool, why: list[str]) -> None:
        """Send the verdict to all ranks."""
        self._closed = True
        for other in self._lines:
            self._send(other, verdict={"go": go, "why": why})

    def await_verdict(self, wait_s: float) -> dict[str, Any] | None:
        """Return the verdict of rank 0; None if there is none in time."""
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
        """Handle what a rank has sent. Returns False at the end of its connection."""
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

    def _handle(self, other: int, message: dict[str, Any]) -> None:
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
