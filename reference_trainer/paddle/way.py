"""How a worker meets the servers of a run, waits there for other workers, and sees that a server is gone.

Everybody meets at the servers' ports first; only then Paddle's servers take these ports. The connections of the meeting
stay and carry the barriers, since without them Paddle's workers go on without a server, and its servers do not notice
that all workers have ended.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any, Dict, List

from preflight.node.wire import ProbeUnavailable
from reference_trainer import assembly, endpoint, phases
from reference_trainer.assembly import Line
from reference_trainer.progress import Progress
from reference_trainer.ps.report import ServerSeen
from reference_trainer.ps.settings import Settings, split

#: What all processes of a run must say alike.
COMMON = ("servers", "workers", "server_endpoints", "mode", "steps", "run_id", "framework")
#: A worker looks so often whether all servers are still there.
_LOOK_S = 0.2
#: How a worker exits whose server went away while Paddle's client held it.
LOST = 75
#: Whoever is waited for must get on within this; the head names it long before.
PATIENCE_S = 600.0


def own(told: Settings) -> Dict[str, Any]:
    """What a process says of itself where it meets the others."""
    return {
        "rank": told.rank,
        "index": told.index,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "servers": told.servers,
        "workers": told.workers,
        "server_endpoints": list(told.endpoints),
        "mode": told.mode,
        "steps": told.steps,
        "run_id": told.run_id,
        "framework": "paddle",
    }


class Way:
    """A worker's connections to the servers' processes: for the meeting, the barriers, and to see that one is gone."""

    def __init__(self, told: Settings, me: Progress) -> None:
        self._told = told
        self._me = me
        self._lines: List[Line] = []
        self._over = threading.Event()
        self._dialled = [endpoint.Dialled("failed", "it was not tried") for _ in told.endpoints]

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        for line in self._lines:
            line.close()

    def dial(self) -> str:
        """Try the port of every server, all at once. Returns the own address as the first of them is spoken to."""
        told, me = self._told, self._me
        me.entering("connections to the servers", waiting_for=list(told.server_numbers))
        threads = [threading.Thread(target=self._dial, args=(server,), daemon=True) for server in range(told.servers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(told.timeout_s + 2 * endpoint.ATTEMPT_S)
        for server, dialled in enumerate(self._dialled):
            if dialled.result != "open":
                text = "cannot reach server %d at %s (%s): %s"
                raise ProbeUnavailable(
                    "timeout", text % (server, told.endpoints[server], dialled.result, dialled.error)
                )
        me.left()
        return self._dialled[0].source

    def _dial(self, server: int) -> None:
        where = self._told.endpoints[server]
        try:
            host, port = split(where)
        except ValueError as error:
            self._dialled[server] = endpoint.Dialled("unresolved", str(error))
            self._tell(server, self._dialled[server])
            return

        def tell(dialled: endpoint.Dialled) -> None:
            self._tell(server, dialled)

        self._dialled[server] = endpoint.dial_until(host, port, timeout_s=self._told.timeout_s, tell=tell)

    def _tell(self, server: int, dialled: endpoint.Dialled) -> None:
        self._me.say(
            phases.DIAL,
            rank=self._told.rank,
            to=self._told.server_numbers[server],
            endpoint=self._told.endpoints[server],
            result=dialled.result,
            error=dialled.error,
            address=dialled.address,
            source=dialled.source,
            seconds=round(dialled.seconds, 4),
        )

    def meet(self) -> None:
        """Say to every server who this is, and wait until all workers have; from then on servers are watched."""
        told, me = self._told, self._me
        me.entering("all workers to come to the servers", waiting_for=list(told.server_numbers))
        for server, number in enumerate(told.server_numbers):
            host, port = split(told.endpoints[server])
            self._lines.append(assembly.visit(own(told), host, port, number, me, told.timeout_s))
        me.left()
        threading.Thread(target=self._watch, name="preflight-servers", daemon=True).start()

    def await_servers(self) -> None:
        """Wait until Paddle's own servers have taken the ports."""
        told, me = self._told, self._me
        me.entering("paddle's servers", waiting_for=list(told.server_numbers))
        for server, number in enumerate(told.server_numbers):
            me.waits_for([number])
            host, port = split(told.endpoints[server])
            opened = endpoint.dial_until(host, port, timeout_s=told.timeout_s, tell=lambda dialled: None)
            if opened.result != "open":
                text = "paddle's server %d at %s does not listen (%s): %s"
                raise ProbeUnavailable("blocked", text % (server, told.endpoints[server], opened.result, opened.error))
        me.left()

    def barrier(self, what: str) -> None:
        """Wait until all workers have come to the same place."""
        self._me.entering(what, waiting_for=list(self._told.server_numbers[:1]))
        line = self._lines[0]
        try:
            line.say(at=what)
            ends = time.monotonic() + PATIENCE_S
            while True:
                said = line.hear(ends)
                if said is None:
                    raise ProbeUnavailable("timeout", "not all workers came to %r within %g s" % (what, PATIENCE_S))
                if said.get("pass") == what:
                    break
                if said.get("missing"):
                    self._me.waits_for([number for number in said["missing"] if number != self._told.rank])
        except ConnectionError:
            self._gone(0)
        self._me.left()

    def _watch(self) -> None:
        """End this process when a server is gone: Paddle's client goes on without it, or waits for minutes in C++."""
        poll = select.poll()
        servers = {line.connection.fileno(): server for server, line in enumerate(self._lines)}
        for descriptor in servers:
            poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._over.is_set():
            gone = [servers[descriptor] for descriptor, _ in poll.poll(_LOOK_S * 1000)]
            if gone and not self._over.wait(_LOOK_S):
                self._complain(gone[0])
                os._exit(LOST)

    def goodbye(self) -> None:
        """Tell every server that this worker needs it no more."""
        self._over.set()
        for server, line in enumerate(self._lines):
            try:
                line.connection.settimeout(5.0)
                line.say(bye=True, host=socket.gethostname())
            except OSError:
                self._gone(server)

    def seen(self) -> List[ServerSeen]:
        """What this worker saw of each server."""
        return [
            ServerSeen(server, where, "", dialled.address, dialled.source, dialled.result, dialled.error)
            for server, (where, dialled) in enumerate(zip(self._told.endpoints, self._dialled))
        ]

    def _complain(self, server: int) -> str:
        text = "server %d went away" % server
        number = self._told.server_numbers[server]
        self._me.say(
            phases.PROBLEM,
            problem="failed",
            phase=self._me.phase,
            error=text,
            consequence=True,
            rank=self._told.rank,
            because=[number],
        )
        return text

    def _gone(self, server: int) -> None:
        self._over.set()
        raise ProbeUnavailable("blocked", self._complain(server))
