"""Connects a worker to the servers of a run, waits there for other workers, and detects the loss of a server.

All processes connect to the servers' ports first; only then do Paddle's servers bind these ports. The connections stay
open and carry the barriers, because otherwise Paddle's workers would continue without a server, and its servers would
not notice that all workers have ended.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any, Dict, List

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import assembly, rendezvous
from reference_trainer.common.assembly import JsonLines
from reference_trainer.common.progress import Progress
from reference_trainer.ps.run_report import ServerStats
from reference_trainer.ps.settings import Settings, split_endpoint

#: Settings that must be equal on all processes of a run.
COMMON = ("servers", "workers", "server_endpoints", "mode", "steps", "run_id", "framework")
#: How often a worker checks that all servers still exist.
_POLL_S = 0.2
#: The exit code of a worker whose server disappeared while Paddle's client was blocked.
LOST = 75
#: The time limit for progress of an awaited process; the head names it long before.
PROGRESS_TIMEOUT_S = 600.0


def own_values(config: Settings) -> Dict[str, Any]:
    """The report of a process about itself when it connects."""
    return {
        "rank": config.rank,
        "index": config.index,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "servers": config.servers,
        "workers": config.workers,
        "server_endpoints": list(config.endpoints),
        "mode": config.mode,
        "steps": config.steps,
        "run_id": config.run_id,
        "framework": "paddle",
    }


class ServerConnections:
    """A worker's connections to the servers' processes: for the handshake, the barriers, and detecting the loss of a
    server.
    """

    def __init__(self, config: Settings, progress: Progress) -> None:
        self._config = config
        self._progress = progress
        self._lines: List[JsonLines] = []
        self._over = threading.Event()
        self._dialled = [rendezvous.DialResult("failed", "it was not tried") for _ in config.endpoints]

    def __enter__(self) -> ServerConnections:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        for line in self._lines:
            line.close()

    def dial(self) -> str:
        """Dial all servers at the same time. Returns the local address of the connection to the first."""
        config, progress = self._config, self._progress
        progress.entering("connections to the servers", waiting_for=list(config.server_numbers))
        threads = [threading.Thread(target=self._dial, args=(server,), daemon=True) for server in range(config.servers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(config.timeout_s + 2 * rendezvous.ATTEMPT_S)
        for server, dialled in enumerate(self._dialled):
            if dialled.result != "open":
                text = "cannot reach server %d at %s (%s): %s"
                raise ProbeUnavailable(
                    "timeout", text % (server, config.endpoints[server], dialled.result, dialled.error)
                )
        progress.left()
        return self._dialled[0].source

    def _dial(self, server: int) -> None:
        where = self._config.endpoints[server]
        try:
            host, port = split_endpoint(where)
        except ValueError as error:
            self._dialled[server] = rendezvous.DialResult("unresolved", str(error))
            self._on_dialled(server, self._dialled[server])
            return

        def on_dialled(dialled: rendezvous.DialResult) -> None:
            self._on_dialled(server, dialled)

        self._dialled[server] = rendezvous.dial_until(
            host, port, timeout_s=self._config.timeout_s, on_dialled=on_dialled
        )

    def _on_dialled(self, server: int, dialled: rendezvous.DialResult) -> None:
        self._progress.send(
            rank_events.DIAL,
            rank=self._config.rank,
            to=self._config.server_numbers[server],
            endpoint=self._config.endpoints[server],
            result=dialled.result,
            error=dialled.error,
            address=dialled.address,
            source=dialled.source,
            seconds=round(dialled.seconds, 4),
        )

    def meet(self) -> None:
        """Report to every server, and wait until all workers have done so; afterwards the servers are watched."""
        config, progress = self._config, self._progress
        progress.entering("all workers to connect to the servers", waiting_for=list(config.server_numbers))
        for server, number in enumerate(config.server_numbers):
            host, port = split_endpoint(config.endpoints[server])
            self._lines.append(
                assembly.join_assembly(own_values(config), host, port, number, progress, config.timeout_s)
            )
        progress.left()
        threading.Thread(target=self._watch, name="preflight-servers", daemon=True).start()

    def await_servers(self) -> None:
        """Wait until Paddle's own servers have bound the ports."""
        config, progress = self._config, self._progress
        progress.entering("paddle's servers", waiting_for=list(config.server_numbers))
        for server, number in enumerate(config.server_numbers):
            progress.waits_for([number])
            host, port = split_endpoint(config.endpoints[server])
            opened = rendezvous.dial_until(host, port, timeout_s=config.timeout_s, on_dialled=lambda dialled: None)
            if opened.result != "open":
                text = "paddle's server %d at %s does not listen (%s): %s"
                raise ProbeUnavailable(
                    "blocked", text % (server, config.endpoints[server], opened.result, opened.error)
                )
        progress.left()

    def barrier(self, what: str) -> None:
        """Wait until all workers have reached the same barrier."""
        self._progress.entering(what, waiting_for=list(self._config.server_numbers[:1]))
        line = self._lines[0]
        try:
            line.send(at=what)
            ends = time.monotonic() + PROGRESS_TIMEOUT_S
            while True:
                message = line.receive(ends)
                if message is None:
                    raise ProbeUnavailable(
                        "timeout", "not all workers reached %r within %g s" % (what, PROGRESS_TIMEOUT_S)
                    )
                if message.get("pass") == what:
                    break
                if message.get("missing"):
                    self._progress.waits_for([number for number in message["missing"] if number != self._config.rank])
        except ConnectionError:
            self._gone(0)
        self._progress.left()

    def _watch(self) -> None:
        """End this process when a server is gone: Paddle's client continues without it, or waits for minutes in C++."""
        poll = select.poll()
        servers = {line.connection.fileno(): server for server, line in enumerate(self._lines)}
        for descriptor in servers:
            poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._over.is_set():
            gone = [servers[descriptor] for descriptor, _ in poll.poll(_POLL_S * 1000)]
            if gone and not self._over.wait(_POLL_S):
                self._report_loss(gone[0])
                os._exit(LOST)

    def send_goodbye(self) -> None:
        """Tell every server that this worker has finished."""
        self._over.set()
        for server, line in enumerate(self._lines):
            try:
                line.connection.settimeout(5.0)
                line.send(bye=True, host=socket.gethostname())
            except OSError:
                self._gone(server)

    def seen(self) -> List[ServerStats]:
        """This worker's observations of each server."""
        return [
            ServerStats(server, where, "", dialled.address, dialled.source, dialled.result, dialled.error)
            for server, (where, dialled) in enumerate(zip(self._config.endpoints, self._dialled))
        ]

    def _report_loss(self, server: int) -> str:
        text = "server %d disconnected" % server
        number = self._config.server_numbers[server]
        self._progress.send(
            rank_events.PROBLEM,
            problem="failed",
            phase=self._progress.phase,
            error=text,
            consequence=True,
            rank=self._config.rank,
            because=[number],
        )
        return text

    def _gone(self, server: int) -> None:
        self._over.set()
        raise ProbeUnavailable("blocked", self._report_loss(server))
