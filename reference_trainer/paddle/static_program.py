"""Paddle's own parameter servers: a small static program, and how a worker connects to them and detects their loss.

All processes connect to the servers' ports first; only then do Paddle's servers bind these ports. The connections stay
open and carry the barriers, because otherwise Paddle's workers would continue without a server, and its servers would
not notice that all workers have ended.

Servers and workers build the same program; `minimize` divides it. Paddle's geo mode does not support sparse tables
(2.6.2 stops with a type error), so there the program is dense.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any

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


def own_values(config: Settings) -> dict[str, Any]:
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
        """This worker's observations of each server."""
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


def environment(config: Settings, role: str, address: str) -> None:
    """The variables that configure Paddle's role maker for the run; they replace the job's own."""
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
        # Releases with the new intermediate representation divide no programs for servers unless it is off.
        FLAGS_enable_pir_api="0",
    )


def load() -> Any:
    """`paddle`. Raises ProbeUnavailable of kind `missing` if it, or its parameter server, is not available."""
    try:
        import paddle
        from paddle.base import core
    except ImportError as error:
        raise ProbeUnavailable("missing", f"paddle with parameter servers cannot be imported: {error}") from error
    if not hasattr(core, "DistFleetWrapper"):
        text = "paddle %s was built without the parameter server, as the wheels of 3.1.1 and newer are"
        raise ProbeUnavailable("missing", text % paddle.__version__)
    return paddle


class Program:
    """The program of one process, for its role. `geo_steps` is the number of local steps between two exchanges of geo
    mode.
    """

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
        """This process's copy of every dense parameter: numpy arrays by name."""
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
        """Initialise the parameters; Paddle's first worker sends them to the servers."""
        self._executor.run(self._program.paddle.static.default_startup_program())
        self._program.fleet.init_worker()
        if self._program.sparse:
            self._contexts = self._dense_contexts()

    def step(self) -> float:
        """Run one step; return the loss before it."""
        (loss,) = self._executor.run(self._program.main, feed=self._feed, fetch_list=[self._program.loss])
        return float(loss.reshape(-1)[0])

    def pull(self) -> None:
        """Read the dense parameters from the servers, as the threads of `train_from_dataset` do between steps.

        If a program runs its own loop, nothing else reads them, except Paddle's communicator in geo mode.
        """
        send, receive = self._contexts
        if send is not None:
            runtime = self._program.fleet.fleet._runtime_handle
            runtime._pull_all_dense(runtime.scopes, send, receive)

    def stop(self) -> None:
        """Stop Paddle's client."""
        self._program.fleet.stop_worker()

    def _dense_contexts(self) -> tuple[Any, Any]:
        from paddle.distributed.ps.utils import public

        runtime = self._program.fleet.fleet._runtime_handle
        send = public.get_the_one_send_context(runtime.context, split_dense_table=False, ep_list=runtime.endpoints)
        from paddle.distributed.ps.the_one_ps import get_the_one_recv_context

        return send, get_the_one_recv_context(runtime.context, split_dense_table=False)


def _batch(worker: int, *, sparse: bool) -> dict[str, Any]:
    """One worker's samples around one centre per class, and table rows that only it looks up."""
    import numpy

    centres = numpy.random.RandomState(20177).standard_normal((CLASSES, INPUTS))
    own_values = numpy.random.RandomState(1000 + worker)
    labels = own_values.randint(0, CLASSES, BATCH)
    samples = centres[labels] + 0.3 * own_values.standard_normal((BATCH, INPUTS))
    feed: dict[str, Any] = {"inputs": samples.astype("float32"), "labels": labels.reshape(-1, 1).astype("int64")}
    if sparse:
        feed["ids"] = ((numpy.arange(BATCH) + BATCH * worker) % ROWS).reshape(-1, 1).astype("int64")
    return feed


def unmoved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The parameters whose bits have not changed."""
    import numpy

    return [name for name in before if numpy.array_equal(before[name], after[name])]
