"""A small static program for Paddle's own parameter servers: dense layers and, if the mode allows it, a table.

Servers and workers build the same program; `minimize` divides it. Paddle's geo mode does not support sparse tables
(2.6.2 stops with a type error), so there the program is dense.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

from preflight.agent.wire import ProbeUnavailable
from reference_trainer.ps.settings import Settings, split_endpoint

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
        PADDLE_TRAINER_ENDPOINTS=",".join("%s:%d" % (address, 1 + worker) for worker in range(config.workers)),
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
        raise ProbeUnavailable("missing", "paddle with parameter servers cannot be imported: %s" % error) from error
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

    def dense(self) -> Dict[str, Any]:
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
        self._contexts: Tuple[Any, Any] = (None, None)

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

    def _dense_contexts(self) -> Tuple[Any, Any]:
        from paddle.distributed.ps.utils import public

        runtime = self._program.fleet.fleet._runtime_handle
        send = public.get_the_one_send_context(runtime.context, split_dense_table=False, ep_list=runtime.endpoints)
        from paddle.distributed.ps.the_one_ps import get_the_one_recv_context

        return send, get_the_one_recv_context(runtime.context, split_dense_table=False)


def _batch(worker: int, *, sparse: bool) -> Dict[str, Any]:
    """One worker's samples around one centre per class, and table rows that only it looks up."""
    import numpy

    centres = numpy.random.RandomState(20177).standard_normal((CLASSES, INPUTS))
    own_values = numpy.random.RandomState(1000 + worker)
    labels = own_values.randint(0, CLASSES, BATCH)
    samples = centres[labels] + 0.3 * own_values.standard_normal((BATCH, INPUTS))
    feed: Dict[str, Any] = {"inputs": samples.astype("float32"), "labels": labels.reshape(-1, 1).astype("int64")}
    if sparse:
        feed["ids"] = ((numpy.arange(BATCH) + BATCH * worker) % ROWS).reshape(-1, 1).astype("int64")
    return feed


def unmoved(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    """The parameters whose bits have not changed."""
    import numpy

    return [name for name in before if numpy.array_equal(before[name], after[name])]
