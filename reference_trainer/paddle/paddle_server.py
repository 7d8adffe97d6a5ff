"""A worker and a server of a run over Paddle's own parameter servers, for jobs whose Python has paddle and no torch.

Paddle merges the workers' pushes, so its servers are judged by the training result and by whether all workers read the
same values, not bit by bit.

It reports for Paddle's server, which is its child process: it accepts workers, handles their barriers, and ends the
server.

Paddle's server cannot be stopped, and holds the interpreter while it serves.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from preflight.agent import process, rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import steps
from reference_trainer.common import assembly
from reference_trainer.common.assembly import JsonLines
from reference_trainer.common.progress import Progress
from reference_trainer.paddle import static_program
from reference_trainer.paddle.static_program import COMMON, PROGRESS_TIMEOUT_S, ServerConnections, own_values
from reference_trainer.ps import settings
from reference_trainer.ps.run_report import ServerReport, WorkerReport, WorkerStats
from reference_trainer.ps.settings import ProcessFault, Settings

#: Paddle's client sends a push asynchronously: it has reached the server after at most this time.
_SETTLE_S = 5.0
_REPEAT_S = 0.2
#: Pushes of Paddle 2.6 arrive some ten steps late: fewer steps than this show no training progress.
_MIN_STEPS = 60


def worker(config: Settings, progress: Progress) -> WorkerReport:
    """Train as one worker of Paddle's servers."""
    with ServerConnections(config, progress) as connections:
        address = connections.dial()
        connections.meet()
        progress.entering("import of paddle", loading=True)
        static_program.environment(config, "worker", address)
        paddle = static_program.load()
        progress.left()
        progress.reached(rank_events.IMPORTED, paddle=str(paddle.__version__))
        connections.await_servers()
        progress.reached(rank_events.JOINED)
        return _train(config, progress, connections, paddle)


def _train(config: Settings, progress: Progress, connections: ServerConnections, paddle: Any) -> WorkerReport:
    progress.entering("program for parameter servers", loading=True)
    cut = static_program.Program(paddle, config)
    task = static_program.Training(cut, config.index)
    progress.left()
    # The first worker initialises the servers' parameters, and an earlier reader gets zeros; in geo mode Paddle's own
    # barrier handles that, and waits for all of them.
    in_turn = config.mode != "geo"
    if config.index and in_turn:
        connections.barrier("first worker's parameters")
    progress.entering("first contact with the servers", waiting_for=list(config.server_numbers), loading=True)
    task.start()
    progress.left()
    if not config.index and in_turn:
        connections.barrier("first worker's parameters")
    connections.barrier("all workers to start")
    losses: list[float] = []
    took: list[float] = []
    pulled: list[float] = []
    task.pull()
    before = cut.dense()
    fault = ProcessFault(config.injected_fault, role="worker", index=config.index, on_fault=progress.on_fault_injected)
    for step in range(max(config.steps, _MIN_STEPS)):
        began = time.perf_counter()
        progress.entering(f"step {step}", brief=True, waiting_for=list(config.server_numbers))
        for phase in (settings.EXACT, settings.TRAINING):
            # This run has no phase with known gradients, so faults for both phases are injected here.
            fault.before_step(phase, step)
        task.pull()
        pulled.append(time.perf_counter() - began)
        losses.append(task.step())
        progress.left()
        took.append(time.perf_counter() - began)
    connections.barrier("all workers to train")
    progress.reached(rank_events.SERVERS, first_loss=losses[0], last_loss=losses[-1])
    after, digest = _read(cut, task, progress)
    progress.reached(rank_events.PARITY, digest=digest)
    connections.barrier("all workers to read")
    progress.entering("sign-off from the servers")
    task.stop()
    connections.send_goodbye()
    progress.left()
    progress.reached(rank_events.DONE)
    return WorkerReport(
        config.rank,
        config.index,
        config.servers,
        config.workers,
        socket.gethostname(),
        config.mode,
        "cpu",
        f"paddle {paddle.__version__}",
        dict(progress.phase_at_s),
        connections.seen(),
        config.plan.digest(),
        0,
        len(losses),
        losses=steps.first_and_last(losses, 200),
        first_loss=losses[0],
        last_loss=losses[-1],
        pull_s=steps.first_and_last(pulled, 200),
        compute_s=steps.first_and_last([whole - pull for whole, pull in zip(took, pulled)], 200),
        unmoved=static_program.unmoved(before, after),
        digest=digest if cut.sparse else "",
    )


def _read(cut: static_program.Program, task: static_program.Training, progress: Progress) -> tuple[dict[str, Any], str]:
    """The dense parameters after everyone's last push, and their SHA-256; they are read until they no longer change."""
    progress.entering("last parameters from the servers")
    ends = time.monotonic() + _SETTLE_S
    digest = ""
    while True:
        task.pull()
        values = cut.dense()
        now = hashlib.sha256(b"".join(values[name].tobytes() for name in sorted(values))).hexdigest()
        if now == digest or time.monotonic() >= ends:
            break
        digest = now
        time.sleep(_REPEAT_S)
    progress.left()
    return values, now


#: How often it checks whether Paddle's server still runs.
_POLL_S = 0.2


def server(config: Settings, progress: Progress, listener: socket.socket) -> ServerReport:
    """Run one of Paddle's servers until every worker has left. `listener` is already on its port.

    Paddle's server runs in a child process, which imports paddle meanwhile: it cannot be stopped otherwise.
    """
    child = PaddleServerProcess(config, listener)
    try:
        progress.entering("workers to join", waiting_for=list(config.worker_numbers))
        lines = assembly.host_assembly(
            own_values(config), config.worker_numbers, COMMON, progress, listener, config.timeout_s
        )
        progress.left()
        progress.entering("import of paddle", loading=True)
        version = child.ready(config.timeout_s)
        progress.left()
        progress.reached(rank_events.IMPORTED, paddle=version)
        child.serve()
        progress.reached(rank_events.JOINED)
        seen = _serve(config, progress, lines, child)
        progress.reached(rank_events.DONE)
        return ServerReport(
            config.rank,
            config.index,
            config.servers,
            config.workers,
            socket.gethostname(),
            config.endpoint,
            config.mode,
            "cpu",
            f"paddle {version}",
            dict(progress.phase_at_s),
            seen=seen,
        )
    finally:
        child.end()


def _serve(
    config: Settings, progress: Progress, lines: dict[int, JsonLines], child: PaddleServerProcess
) -> list[WorkerStats]:
    """Answer barriers (as server 0) until every worker has left; returns the observations of each."""
    names = {number: index for index, number in enumerate(config.worker_numbers)}
    left: dict[int, WorkerStats] = {}
    at: dict[str, list[int]] = {}
    passed_s = time.monotonic()
    on_fault_injected = False
    progress.entering("requests of workers", waiting_for=list(config.worker_numbers))
    with selectors.DefaultSelector() as selector:
        for number, line in lines.items():
            line.connection.setblocking(False)
            selector.register(line.connection, selectors.EVENT_READ, number)
        while len(left) < len(lines):
            gone = child.exit_reason()
            if gone:
                raise RuntimeError(f"paddle's server {config.index} {gone}")
            if time.monotonic() - passed_s > PROGRESS_TIMEOUT_S:
                raise ProbeUnavailable("timeout", f"no worker made progress for {PROGRESS_TIMEOUT_S:g} s")
            for key, _ in selector.select(_POLL_S):
                number = int(key.data)
                try:
                    message = lines[number].ready()
                except ConnectionError:
                    _lost(progress, names[number], number)
                if not message:
                    continue
                progress.report_progress()
                passed_s = time.monotonic()
                if "bye" in message:
                    selector.unregister(lines[number].connection)
                    left[number] = WorkerStats(names[number], str(message.get("host", "")), 0, "", pulls=0)
                elif "at" in message:
                    on_fault_injected = on_fault_injected or _apply_fault(config, progress, str(message["at"]))
                    _arrived(str(message["at"]), number, at, lines, progress)
    progress.left()
    for line in lines.values():
        line.close()
    return [left[number] for number in sorted(left)]


def _apply_fault(config: Settings, progress: Progress, what: str) -> bool:
    """Die or stop, if that is the injected fault, when workers finish training; return whether it happened.

    This process does not see single steps. Its child, Paddle's server, ends with it.
    """
    if what != "all workers to train":
        return False
    fault = ProcessFault(config.injected_fault, role="server", index=config.index, on_fault=progress.on_fault_injected)
    for phase in (settings.EXACT, settings.TRAINING):
        fault.trigger(phase, fault.step)
    return True


def _arrived(what: str, number: int, at: dict[str, list[int]], lines: dict[int, JsonLines], progress: Progress) -> None:
    here = at.setdefault(what, [])
    here.append(number)
    missing = [other for other in lines if other not in here]
    progress.waits_for(missing or list(lines))
    for other in here if not missing else [number]:
        lines[other].send(**({"pass": what} if not missing else {"missing": missing}))
    if missing:
        for other in here:
            lines[other].send(missing=missing)


def _lost(progress: Progress, worker: int, number: int) -> None:
    text = f"worker {worker} disconnected before the end"
    progress.report_loss(text, [number])
    raise ProbeUnavailable("blocked", text)


class PaddleServerProcess:
    """Paddle's server in a separate process: it imports, reports, and serves on command."""

    def __init__(self, config: Settings, listener: socket.socket) -> None:
        reading, self._writing = os.pipe()
        self._reading, writing = os.pipe()
        self._received = b""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(reading)
            os.close(writing)
            return
        process.die_with_parent()
        os.close(self._writing)
        os.close(self._reading)
        listener.close()
        _serve_paddle(config, reading, writing)

    def ready(self, timeout_s: float) -> str:
        """The server's version of paddle, once imported. Raises ProbeUnavailable with its output if that fails."""
        ends = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            while b"\n" not in self._received:
                left = ends - time.monotonic()
                if left <= 0:
                    raise ProbeUnavailable("timeout", f"paddle was not imported within {timeout_s:g} s")
                if selector.select(left):
                    part = os.read(self._reading, 4096)
                    if not part:
                        raise RuntimeError(f"paddle's server {self._ending()} while it was imported")
                    self._received += part
        kind, _, text = self._received.split(b"\n", 1)[0].decode("utf-8", "replace").partition(" ")
        if kind != "ready":
            raise ProbeUnavailable(kind, text)
        return text

    def serve(self) -> None:
        """Start serving; its port must be free."""
        os.write(self._writing, b"go\n")

    def exit_reason(self) -> str:
        """A description of how it ended; empty while it runs."""
        if not self.pid:
            return "ended"
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return ""
        self.pid = 0
        return _describe_status(status)

    def _ending(self) -> str:
        if not self.pid:
            return "ended"
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return _describe_status(status)

    def end(self) -> None:
        """Kill it if it is still running."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self._writing)
        os.close(self._reading)


def _describe_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with {os.WEXITSTATUS(status)}"


def _serve_paddle(config: Settings, reading: int, writing: int) -> None:
    """The child process: never returns."""
    code = 1
    try:
        static_program.environment(config, "server", "")
        paddle = static_program.load()
        os.write(writing, b"ready %s\n" % str(paddle.__version__).encode())
        if os.read(reading, 16) == b"go\n":
            cut = static_program.Program(paddle, config)
            cut.fleet.init_server()
            cut.fleet.run_server()
            code = 0
    except ProbeUnavailable as error:
        os.write(writing, ("{} {}\n".format(error.kind, error.reason.replace("\n", " "))).encode())
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)
