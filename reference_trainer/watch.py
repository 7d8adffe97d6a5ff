"""Watches one rank that has no agent: every wait ends, and whoever it waited for is named through the ranks' own store.

Each rank posts where it is; a rank that stands still too long looks there for the one that is behind, and a rank that
failed leaves the reason there, so that the others end with it instead of with "connection closed".
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Tuple

from reference_trainer import phases
from reference_trainer.launched import Place

#: How often a rank posts where it is, and looks for failures of others.
LOOK_S = 0.5
#: A rank whose posts stand still for so long is silent.
SILENT_S = 3.0
#: So long the one who serves the store waits until the others have read there why they end.
_READ_WITHIN_S = 4.0
#: Libraries are loaded for at most so long, whatever the heart says.
_LOADING_S = 240.0

State = Dict[str, Any]


class Watch:
    """The deadlines of one rank, and what it knows of the others.

    Args:
        deadline_s: for everything. `stall_s`: for one step, once all ranks have met; meeting has its own.
        say: prints a line for people. `end`: ends the process; `os._exit`, because the main thread may be stuck.
    """

    def __init__(
        self,
        place: Place,
        *,
        deadline_s: float,
        stall_s: float,
        say: Callable[[str], None],
        report: Callable[[bool, List[str]], None],
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self._place = place
        self._deadline_s, self._stall_s = deadline_s, stall_s
        self._say, self._report, self._end = say, report, end
        self._began = time.monotonic()
        self._own: State = {"host": socket.gethostname(), "phase": "", "what": "", "collective": 0, "inside": False}
        self._since = self._began
        self._beats = 0
        self._first: Any = None
        self._store: Any = None
        self._closing = False
        self._over = threading.Lock()
        self._seen: Dict[int, Tuple[int, float, State]] = {}

    def start(self) -> None:
        """Begin to watch. SIGTERM (a launcher that ends all ranks since one failed) is taken by a thread of its own.

        The main thread may be inside of a library then, where no handler of Python's would run.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        for run in (self._run, self._await_signal):
            threading.Thread(target=run, name="preflight-watch", daemon=True).start()

    def hear(self, event: Dict[str, Any]) -> None:
        """One event of the rank."""
        kind = event.get("event")
        own = self._own
        if kind == phases.BEAT:
            own["beat"] = event.get("beat", 0)
            return
        if kind == phases.PHASE and event.get("phase") in phases.ORDER:
            own["phase"], own["what"] = event["phase"], ""
        elif kind == phases.ENTERING:
            own["what"], own["waiting_for"] = event.get("what", ""), event.get("waiting_for", [])
            own["collective"] = event.get("collective", own["collective"])
            own["loading"] = bool(event.get("loading"))
        elif kind == phases.LEFT:
            own["what"], own["loading"] = "", False
        self._since = time.monotonic()

    def moved(self, event: Dict[str, Any]) -> None:
        """The progress that a heartbeat tells: many steps in a row are not told one by one."""
        if event.get("event") == phases.BEAT:
            self._since = max(self._since, time.monotonic() - float(event.get("since_s", 0.0)))
            self._own["collective"] = max(self._own["collective"], int(event.get("collective", 0)))
            self._own["what"] = event.get("what", "")

    def on_store(self, store: Any) -> None:
        """The ranks' store is there: from now on through a connection of our own, as the first may be busy."""
        import torch.distributed as dist

        self._first = store  # rank 0 serves it as long as somebody holds it
        host, port = self._place.master_addr, self._place.master_port
        link = dist.TCPStore(host, port, None, False, timedelta(seconds=10), False)
        self._store = dist.PrefixStore("watch", dist.PrefixStore(self._place.prefix, link))
        if self._place.rank == 0:
            self._store.set("token", "%x" % time.time_ns())

    def token(self) -> str:
        """What names this run among others; empty where rank 0 was never met."""
        try:
            if self._store is not None and self._store.check(["token"]):
                return str(self._store.get("token").decode())
        except Exception:
            return ""
        return ""

    def failed(self, reason: str, *, consequence: bool) -> None:
        """This rank failed: say why, for all, and end the process."""
        if consequence:
            culprit = self._await_culprit()
            if culprit:
                self.conclude(culprit)
        self.conclude("%s: %s" % (self._me(), reason))

    def finished(self, summary: Dict[str, Any]) -> Tuple[bool, List[str], List[Dict[str, Any]]]:
        """This rank is through: the verdict over all ranks, why it is none, and (on rank 0) everybody's summary."""
        self._closing = True
        place, store = self._place, self._store
        store.set("report/%d" % place.rank, json.dumps(summary))
        ends = time.monotonic() + self._stall_s
        if place.rank != 0:
            while not store.check(["verdict"]):
                self._look_for_failures()
                if time.monotonic() >= ends:
                    return False, ["%s: rank 0 gave no verdict within %.0f s" % (self._me(), self._stall_s)], []
                time.sleep(0.05)
            verdict = json.loads(store.get("verdict").decode())
            store.add("read", 1)
            return bool(verdict["go"]), [str(each) for each in verdict["why"]], []
        found: Dict[int, Dict[str, Any]] = {}
        while len(found) < place.world_size:
            for rank in range(place.world_size):
                if rank not in found and store.check(["report/%d" % rank]):
                    found[rank] = json.loads(store.get("report/%d" % rank).decode())
            if len(found) < place.world_size:
                self._look_for_failures()
                if time.monotonic() >= ends:
                    break
                time.sleep(0.05)
        why = ["rank %d said nothing of its result" % r for r in range(place.world_size) if r not in found]
        for rank, each in sorted(found.items()):
            why += ["rank %d on %s: %s" % (rank, each["host"], fault) for fault in each["faults"]]
        store.set("verdict", json.dumps({"go": not why, "why": why[:20]}))
        self._await_readers()
        return not why, why, [found[rank] for rank in sorted(found)]

    def conclude(self, why: str) -> None:
        """NO-GO: leave the reason for the others, say it, write the report, and end the process at once."""
        if not self._over.acquire(False):
            time.sleep(_READ_WITHIN_S + 60)  # another thread is already ending the process
            return
        self._closing = True
        self._leave(why)
        own = why.startswith(self._me() + ":")
        self._say(
            "%s: NO-GO%s %s" % (self._me(), ":" if own else " because of", why[len(self._me()) + 2 :] if own else why)
        )
        if self._place.rank == 0:
            self._say("NO-GO: %s" % why)
        self._report(False, [why])
        if self._place.rank == 0:
            self._await_readers()
        self._end(1)

    def _me(self) -> str:
        return "rank %d on %s" % (self._place.rank, self._own["host"])

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            try:
                self._post()
                self._look_for_failures()
            except Exception as error:
                if not self._closing and self._place.rank != 0 and now - self._began > LOOK_S:
                    self._lost(error)
            if self._closing:
                continue
            if now - self._began > self._deadline_s:
                self.conclude(self._waits("did not end within %.0f s" % self._deadline_s))
            limit = _LOADING_S if self._own.get("loading") else self._stall_s
            met = phases.position(self._own["phase"]) >= phases.position(phases.RENDEZVOUS)
            if (met or self._own.get("loading")) and now - self._since > limit:
                self.conclude(self._waits("stands still for %.0f s" % (now - self._since)))

    def _lost(self, error: Exception) -> None:
        """The store is gone, which rank 0 or the launcher served."""
        time.sleep(SILENT_S)  # the main thread may know better
        if not self._closing:
            said = str(error).strip().split("\n")[0]
            self.conclude("rank 0 (%s): the ranks' store there is gone: %s" % (self._place.master_addr, said))

    def _await_signal(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self._closing:
            self._end(143)
        culprit = self._await_culprit()
        self.conclude(culprit or self._waits("was ended by SIGTERM"))

    def _post(self) -> None:
        if self._store is not None:
            self._beats += 1
            self._store.set("at/%d" % self._place.rank, json.dumps({**self._own, "count": self._beats}))

    def _look_for_failures(self) -> None:
        """End, where another rank left a reason."""
        reason = self._failure()
        if reason:
            self.conclude(reason)

    def _failure(self) -> str:
        store = self._store
        if store is None or not store.check(["failure"]):
            return ""
        return str(store.get("failure").decode())

    def _leave(self, why: str) -> None:
        """Leave the reason for the others, where none is left yet; where there is one, that this rank has read it."""
        try:
            if self._store is not None and self._store.compare_set("failure", "", why).decode() != why:
                self._store.add("read", 1)
            elif self._store is not None and self._place.rank != 0:
                self._store.add("read", 1)
        except Exception:
            return

    def _await_readers(self) -> None:
        """Serve the store until everybody has read what is left there, for a moment."""
        ends = time.monotonic() + _READ_WITHIN_S
        try:
            while self._store is not None and time.monotonic() < ends:
                if self._store.add("read", 0) >= self._place.world_size - 1:
                    return
                time.sleep(0.05)
        except Exception:
            return

    def _await_culprit(self) -> str:
        """The reason of another rank, or the rank that fell silent; empty where there is neither."""
        ends = time.monotonic() + SILENT_S + 2 * LOOK_S
        try:
            self._others()
            while self._store is not None and time.monotonic() < ends:
                reason = self._failure()
                if reason:
                    return reason
                time.sleep(LOOK_S / 2)
                self._others()
            silent = self._silent()
        except Exception:
            return ""
        return "; ".join(silent)

    def _others(self) -> None:
        """Look where the others are, and note when they moved."""
        now = time.monotonic()
        for rank in range(self._place.world_size):
            if rank == self._place.rank or not self._store.check(["at/%d" % rank]):
                continue
            state = json.loads(self._store.get("at/%d" % rank).decode())
            before = self._seen.get(rank)
            if before is None or before[0] != state["count"]:
                self._seen[rank] = (state["count"], now, state)

    def _silent(self) -> List[str]:
        now = time.monotonic()
        return [
            "rank %d on %s: it said nothing for %.0f s; last it was at %s"
            % (rank, state["host"], now - at, _doing(state))
            for rank, (_, at, state) in sorted(self._seen.items())
            if now - at >= SILENT_S
        ]

    def _waits(self, what: str) -> str:
        """This rank stands still: who is behind, by what the ranks posted."""
        own = "%s: %s at %s" % (self._me(), what, _doing(self._own))
        if self._store is None:
            return own + ", before it reached rank 0 at %s:%d" % (self._place.master_addr, self._place.master_port)
        try:
            self._others()
            time.sleep(SILENT_S + 2 * LOOK_S)
            self._others()
        except Exception as error:
            return "%s, and the ranks' store is gone: %s" % (own, str(error).split("\n")[0])
        silent = self._silent()
        mine = int(self._own["collective"])
        behind = [
            "rank %d on %s, which is still at %s" % (rank, state["host"], _doing(state))
            for rank, (_, _, state) in sorted(self._seen.items())
            if int(state["collective"]) < mine or phases.position(state["phase"]) < phases.position(self._own["phase"])
        ]
        missing = [
            "rank %d, which never came" % rank
            for rank in range(self._place.world_size)
            if rank != self._place.rank and rank not in self._seen
        ]
        waited = silent or missing or behind
        return "%s; it waits for %s" % (own, "; ".join(waited[:8])) if waited else own


def _doing(state: State) -> str:
    return str(state.get("what") or phases.DOING.get(state.get("phase", ""), "") or "its start")
