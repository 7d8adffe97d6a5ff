"""A server's door: who knocks must prove itself and must have been told the same as the server."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, Callable, Dict, List

from reference_trainer.ps import frames, greeting, plan
from reference_trainer.ps.channel import Channel, PeerError, address_of
from reference_trainer.ps.clocks import Ended
from reference_trainer.ps.hosting import Guest, Hosting
from reference_trainer.ps.service import Service
from reference_trainer.ps.settings import Settings

#: A stranger gets so long, and so many of them at once, before anything is known of them.
_GREETING_S = 5.0
_MOST_UNKNOWN = 64
_ACCEPT_S = 0.5

_WORDS = {
    "servers": "the number of servers",
    "workers": "the number of workers",
    "server_endpoints": "the list of server endpoints",
    "mode": "the update mode",
    "staleness": "the staleness bound",
    "geo_steps": "the local steps of geo mode",
    "steps": "the number of steps",
    "until": "where the run ends",
    "policy": "the placement policy",
}


class Reception:
    """Accepts connections until it is closed; each guest is served by a thread of its own.

    Args:
        tell: hears of a worker that was told something else than this server: (sentence, worker's own words).
    """

    def __init__(self, host: Hosting, listener: socket.socket, tell: Callable[[str, Dict[str, Any]], None]) -> None:
        self._host = host
        self._listener = listener
        self._tell = tell
        self._unknown = threading.BoundedSemaphore(_MOST_UNKNOWN)
        self._quit = threading.Event()
        listener.settimeout(_ACCEPT_S)
        self._thread = threading.Thread(target=self._run, name="preflight-ps-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody is let in any more."""
        self._quit.set()
        self._thread.join(2 * _ACCEPT_S)
        self._listener.close()

    def _run(self) -> None:
        while not self._quit.is_set():
            try:
                connection, _ = self._listener.accept()
            except socket.timeout:
                continue
            except OSError:
                if self._quit.wait(_ACCEPT_S):
                    return
                continue
            if not self._unknown.acquire(blocking=False):
                self._host.stranger(address_of(connection, peer=True), "too many connections at once")
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), name="preflight-ps-guest", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        known = False
        try:
            channel = Channel(connection, peer=address_of(connection, peer=True), limit_s=_GREETING_S)
            try:
                guest = self._admit(channel)
            except PeerError as error:
                if error.kind == "confused":
                    self._host.stranger(channel.address, error.text)
                    channel.say_error("this port belongs to a smoke run of preflight: %s" % error.text, frames.REFUSED)
                channel.close()
                return
            except OSError:
                connection.close()
                return
            self._unknown.release()
            known = True
            if guest is not None:
                Service(self._host, guest).run()
        finally:
            if not known:
                self._unknown.release()

    def _admit(self, channel: Channel) -> Any:
        """The guest, or None for one of this run that was told something else (both sides then know)."""
        host = self._host
        deadline = time.monotonic() + _GREETING_S
        said, challenges = greeting.challenge(channel, host.told.secret, deadline)
        problem = disagreement(host.told, said)
        if not problem:
            guest = Guest(channel, said)
            channel.peer = guest.name()
            problem = self._place(guest)
        if problem:
            channel.say_error(problem, frames.MISMATCH)
            channel.close()
            self._tell(problem, said)
            host.clocks.end(Ended(problem, mismatch=True))
            return None
        told = host.told
        greeting.welcome(channel, told.secret, challenges, {"server": told.index, "host": socket.gethostname()})
        host.moved()
        return guest

    def _place(self, guest: Guest) -> str:
        host = self._host
        with host.lock:
            if guest.spare:
                host.spares.append(guest)
                return ""
            before = host.guests.get(guest.index)
            if before is None and guest.index not in host.left:
                host.guests[guest.index] = guest
                return ""
        first = before.name() if before is not None else "one that has left already"
        return "two workers say that they are worker %d: %s, and before it %s" % (guest.index, guest.name(), first)


def disagreement(told: Settings, said: Dict[str, Any]) -> str:
    """What a worker was told otherwise than this server, in one sentence for both; empty when nothing."""
    index = said.get("index")
    who = "worker %s on %s" % (index, str(said.get("host", "?"))[:255])
    here = "server %d" % told.index
    if said.get("role") != "worker":
        return "%s says that its role is %r; there are server and worker" % (who, str(said.get("role"))[:40])
    if said.get("run_id", "") != told.run_id:
        return "%s is of run %r, %s of run %r" % (who, str(said.get("run_id"))[:64], here, told.run_id)
    own = told.says()
    for name, words in _WORDS.items():
        if said.get(name) != own[name]:
            return "%s was told that %s is %s; %s was told %s" % (
                who,
                words,
                _short(said.get(name)),
                here,
                _short(own[name]),
            )
    if said.get("server") != told.index:
        return "%s takes this process for server %s, but it is %s" % (who, _short(said.get("server")), here)
    if not isinstance(index, int) or isinstance(index, bool):
        return "%s has no index" % who
    if not said.get("spare") and not 0 <= index < told.workers:
        return "%s has an index that does not exist: there are %d workers, from 0 on" % (who, told.workers)
    if said.get("plan") != own["plan"]:
        parameters: List[Any] = told.plan.parameters()
        what = plan.difference(parameters, said.get("parameters")) or "the same parameters, cut or dealt otherwise"
        return "%s has another list of parameters than %s: %s" % (who, here, what)
    return ""


def _short(value: Any) -> str:
    return repr(value)[:200]
