"""A worker and a server of a run over Paddle's own parameter servers, for jobs whose Python has paddle and no torch.

Paddle merges the workers' pushes, so its servers are judged by the training result and by whether all workers read the
same values, not bit by bit.

The server process reports for Paddle's server, which is its child process: it accepts workers, handles their barriers,
and ends the child. Paddle's server cannot be stopped, and holds the interpreter while it serves.

All processes connect to the servers' ports first; only then do Paddle's servers bind these ports. The connections stay
open and carry the barriers, because otherwise Paddle's workers would continue without a server, and its servers would
not notice that all workers have ended.

Servers and workers build the same program; `minimize` divides it. Paddle's geo mode does not support sparse tables
(2.6.2 stops with a type error), so there the program is dense.
"""

from __future__ import annotations

import hashlib
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any

from preflight.agent import process, rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import steps
from reference_trainer.common import arrays, rendezvous
from reference_trainer.common.arrays import JsonLines
from reference_trainer.common.progress import Progress
from reference_trainer.ps import settings
from reference_trainer.ps.run_report import ServerReport, ServerStats, WorkerReport, WorkerStats
from reference_trainer.ps.settings import ProcessFault, Settings, split_endpoint

#: Longest time until a push, which Paddle's client sends asynchronously, has reached the server.
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
        set_environment(config, "worker", address)
        paddle = load_paddle()
        progress.left()
        progress.reached(rank_events.IMPORTED, paddle=str(paddle.__version__))
        connections.await_servers()
        progress.reached(rank_events.JOINED)
        return _train(config, progress, connections, paddle)


def _train(config: Settings, progress: Progress, connections: ServerConnections, paddle: Any) -> WorkerReport:
    progress.entering("program for parameter servers", loading=True)
    cut = Program(paddle, config)
    task = Training(cut, config.index)
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
        started_at = time.perf_counter()
        progress.entering(f"step {step}", brief=True, waiting_for=list(config.server_numbers))
        for phase in (settings.EXACT, settings.TRAINING):
            # This run has no phase with known gradients, so faults for both phases are injected here.
            fault.before_step(phase, step)
        task.pull()
        pulled.append(time.perf_counter() - started_at)
        losses.append(task.step())
        progress.left()
        took.append(time.perf_counter() - started_at)
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
        unmoved=unchanged_tensors(before, after),
        digest=digest if cut.sparse else "",
    )


def _read(cut: Program, task: Training, progress: Progress) -> tuple[dict[str, Any], str]:
    """Return the dense parameters after all pushes, and their SHA-256, read until they no longer change."""
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


#: Interval between checks whether Paddle's server still runs.
_POLL_S = 0.2


def server(config: Settings, progress: Progress, listener: socket.socket) -> ServerReport:
    """Run one of Paddle's servers, in a child that can be ended, until every worker left."""
    child = PaddleServerProcess(config, listener)
    try:
        progress.entering("workers to join", waiting_for=list(config.worker_numbers))
        lines = arrays.host_assembly(
            own_values(config), config.worker_numbers, COMMON, progress, listener, config.timeout_s
        )
        progress.left()
        progress.entering("import of paddle", loading=True)
        version = child.ready(config.timeout_s)
        progress.left()
        progress.reached(rank_events.IMPORTED, paddle=version)
        child.serve()
        progress.reached(rank_events.JOINED)
        observed = _serve(config, progress, lines, child)
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
            seen=observed,
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
    """Die or stop after the workers' training if that is the fault; return whether. The server process dies too."""
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
        """Return the server's version of paddle after its import. Raises ProbeUnavailable with its output."""
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
        os.write(self._writing, b"go\n")

    def exit_reason(self) -> str:
        """Return how the process ended; empty while it runs."""
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
    """Run the child process; never returns."""
    code = 1
    try:
        set_environment(config, "server", "")
        paddle = load_paddle()
        os.write(writing, b"ready %s\n" % str(paddle.__version__).encode())
        if os.read(reading, 16) == b"go\n":
            cut = Program(paddle, config)
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


#: Settings that must be equal on all processes of a run.
COMMON = ("servers", "workers", "server_endpoints", "mode", "steps", "run_id", "framework")
#: The exit code of a worker whose server disappeared while Paddle's client was blocked.
LOST = 75
#: The time limit for progress of an awaited process; the head names it long before.
PROGRESS_TIMEOUT_S = 600.0


def own_values(config: Settings) -> dict[str, Any]:
    """Return the report of a process about itself when it connects."""
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
    """A worker's connections to server processes, for handshake, barriers, and detecting a lost server."""

    def __init__(self, config: Settings, progress: Progress) -> None:
        self._config = config
        self._progress = progress
        self._lines: list[JsonLines] = []
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
        number, endpoint = self._config.server_numbers[server], self._config.endpoints[server]
        rendezvous.report_dial(self._progress, dialled, to=number, endpoint=endpoint)

    def meet(self) -> None:
        """Report to every server, and wait until all workers have done so; afterwards the servers are watched."""
        config, progress = self._config, self._progress
        progress.entering("all workers to connect to the servers", waiting_for=list(config.server_numbers))
        for server, number in enumerate(config.server_numbers):
            host, port = split_endpoint(config.endpoints[server])
            self._lines.append(arrays.join_assembly(own_values(config), host, port, number, progress, config.timeout_s))
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
                        "timeout", f"not all workers reached {what!r} within {PROGRESS_TIMEOUT_S:g} s"
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

    def seen(self) -> list[ServerStats]:
        """Return this worker's data about each server, for the report."""
        return [
            ServerStats(server, where, "", dialled.address, dialled.source, dialled.result, dialled.error)
            for server, (where, dialled) in enumerate(zip(self._config.endpoints, self._dialled))
        ]

    def _report_loss(self, server: int) -> str:
        text = f"server {server} disconnected"
        number = self._config.server_numbers[server]
        self._progress.report_loss(text, [number])
        return text

    def _gone(self, server: int) -> None:
        self._over.set()
        raise ProbeUnavailable("blocked", self._report_loss(server))


INPUTS, HIDDEN, CLASSES, BATCH, ROWS, WIDTH, LEARNING_RATE = 16, 32, 4, 64, 1000, 8, 0.03
TABLE = "preflight_embedding"


def set_environment(config: Settings, role: str, address: str) -> None:
    """Set the variables that configure Paddle's role maker for the run, in place of the job's own."""
    host, port = split_endpoint(config.endpoint) if role == "server" else (address, 0)
    os.environ.update(
        TRAINING_ROLE="PSERVER" if role == "server" else "TRAINER",
        PADDLE_PSERVERS_IP_PORT_LIST=",".join(config.endpoints),
        PADDLE_TRAINERS_NUM=str(config.workers),
        PADDLE_TRAINER_ID=str(config.index),
        PADDLE_TRAINER_ENDPOINTS=",".join(f"{address}:{1 + worker}" for worker in range(config.workers)),
        POD_IP=host,
        PADDLE_PORT=str(port),
        # Workers connect to the servers themselves, before Paddle is imported.
        PADDLE_WITH_GLOO="0",
        # Releases with the new intermediate representation divide programs for servers only if it is off.
        FLAGS_enable_pir_api="0",
    )


def load_paddle() -> Any:
    """Return `paddle`. Raises ProbeUnavailable of kind `missing` if it, or its parameter server, is not available."""
    try:
        import paddle
        from paddle.base import core
    except ImportError as error:
        raise ProbeUnavailable("missing", f"paddle with parameter servers cannot be imported: {error}") from error
    if not hasattr(core, "DistFleetWrapper"):
        text = "paddle %s was built without the parameter server, like the wheels of 3.1.1 and newer"
        raise ProbeUnavailable("missing", text % paddle.__version__)
    return paddle


class Program:
    """The program of a process, for its role. `geo_steps` is the number of local steps between geo exchanges."""

    def __init__(self, paddle: Any, config: Settings) -> None:
        from paddle.distributed import fleet

        self.paddle, self.fleet = paddle, fleet
        self.sparse = config.mode != "geo"
        paddle.enable_static()
        fleet.init(fleet.PaddleCloudRoleMaker())
        inputs = paddle.static.data("inputs", [None, INPUTS], "float32")
        labels = paddle.static.data("labels", [None, 1], "int64")
        joined = inputs
        if self.sparse:
            ids = paddle.static.data("ids", [None, 1], "int64")
            attribute = paddle.ParamAttr(name=TABLE, initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
            rows = paddle.static.nn.sparse_embedding(ids, [ROWS, WIDTH], param_attr=attribute)
            joined = paddle.concat([inputs, paddle.reshape(rows, [-1, WIDTH])], axis=1)
        hidden = paddle.static.nn.fc(joined, HIDDEN, activation="relu")
        outputs = paddle.static.nn.fc(hidden, CLASSES)
        self.loss = paddle.mean(paddle.nn.functional.cross_entropy(outputs, labels))
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = config.mode != "sync"
        if config.mode == "geo":
            strategy.a_sync_configs = {"k_steps": config.geo_steps}
        fleet.distributed_optimizer(paddle.optimizer.SGD(LEARNING_RATE), strategy).minimize(self.loss)
        self.main = paddle.static.default_main_program()

    def dense(self) -> dict[str, Any]:
        """Return this process's copy of every dense parameter: numpy arrays by name."""
        import numpy

        scope = self.paddle.static.global_scope()
        names = [parameter.name for parameter in self.main.all_parameters() if parameter.name != TABLE]
        return {name: numpy.array(scope.find_var(name).get_tensor()) for name in sorted(names)}


class Training:
    """A worker's use of the program: steps on its own fixed batch, and reads from the servers."""

    def __init__(self, program: Program, worker: int) -> None:
        self._program = program
        self._executor = program.paddle.static.Executor(program.paddle.CPUPlace())
        self._feed = _batch(worker, sparse=program.sparse)
        self._contexts: tuple[Any, Any] = (None, None)

    def start(self) -> None:
        self._executor.run(self._program.paddle.static.default_startup_program())
        self._program.fleet.init_worker()
        if self._program.sparse:
            self._contexts = self._dense_contexts()

    def step(self) -> float:
        (loss,) = self._executor.run(self._program.main, feed=self._feed, fetch_list=[self._program.loss])
        return float(loss.reshape(-1)[0])

    def pull(self) -> None:
        """Read the dense parameters; in a program with its own loop, Paddle does so only in geo mode."""
        send, receive = self._contexts
        if send is not None:
            runtime = self._program.fleet.fleet._runtime_handle
            runtime._pull_all_dense(runtime.scopes, send, receive)

    def stop(self) -> None:
        self._program.fleet.stop_worker()

    def _dense_contexts(self) -> tuple[Any, Any]:
        from paddle.distributed.ps.utils import public

        runtime = self._program.fleet.fleet._runtime_handle
        send = public.get_the_one_send_context(runtime.context, split_dense_table=False, ep_list=runtime.endpoints)
        from paddle.distributed.ps.the_one_ps import get_the_one_recv_context

        return send, get_the_one_recv_context(runtime.context, split_dense_table=False)


def _batch(worker: int, *, sparse: bool) -> dict[str, Any]:
    """Return one worker's samples around one centre per class, and table rows that only it looks up."""
    import numpy

    centres = numpy.random.RandomState(20177).standard_normal((CLASSES, INPUTS))
    own_values = numpy.random.RandomState(1000 + worker)
    labels = own_values.randint(0, CLASSES, BATCH)
    samples = centres[labels] + 0.3 * own_values.standard_normal((BATCH, INPUTS))
    feed: dict[str, Any] = {"inputs": samples.astype("float32"), "labels": labels.reshape(-1, 1).astype("int64")}
    if sparse:
        feed["ids"] = ((numpy.arange(BATCH) + BATCH * worker) % ROWS).reshape(-1, 1).astype("int64")
    return feed


def unchanged_tensors(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the parameters whose bits have not changed."""
    import numpy

    return [name for name in before if numpy.array_equal(before[name], after[name])]
