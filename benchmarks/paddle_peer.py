"""One server or trainer of Paddle's own parameter servers, as its arguments say: the peer of `ps_paddle`.

It is run by an interpreter that has Paddle and numpy, and nothing of preflight. A trainer reads how many steps to take
from each line of its standard input, and answers with the seconds that they took.
"""

import json
import os
import sys
import time


def environment(config):
    """The variables from which Paddle's role maker learns the layout of the run."""
    host, _, port = config["server"].rpartition(":")
    is_server = config["role"] == "server"
    os.environ.update(
        TRAINING_ROLE="PSERVER" if is_server else "TRAINER",
        PADDLE_PSERVERS_IP_PORT_LIST=config["server"],
        PADDLE_TRAINERS_NUM=str(config["workers"]),
        PADDLE_TRAINER_ID=str(config["index"]),
        PADDLE_TRAINER_ENDPOINTS=",".join(f"127.0.0.1:{1 + index}" for index in range(config["workers"])),
        POD_IP=host,
        PADDLE_PORT=port if is_server else "0",
        PADDLE_WITH_GLOO="0",
        # Releases with the new intermediate representation split programs for servers only if it is off.
        FLAGS_enable_pir_api="0",
    )


def program(config):
    """The model of the reference trainer: dense inputs and the mean of rows of one table, one hidden layer."""
    import paddle
    from paddle.distributed import fleet

    model = config["model"]
    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker())
    inputs = paddle.static.data("inputs", [None, model["inputs"]], "float32")
    labels = paddle.static.data("labels", [None, 1], "int64")
    ids = paddle.static.data("ids", [None, 1], "int64")
    attribute = paddle.ParamAttr(name="rows", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
    found = paddle.static.nn.sparse_embedding(ids, [model["rows"], model["width"]], param_attr=attribute)
    means = paddle.mean(paddle.reshape(found, [-1, model["slots"], model["width"]]), axis=1)
    hidden = paddle.static.nn.fc(paddle.concat([inputs, means], axis=1), model["hidden"], activation="relu")
    outputs = paddle.static.nn.fc(hidden, model["classes"])
    loss = paddle.mean(paddle.nn.functional.cross_entropy(outputs, labels))
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    fleet.distributed_optimizer(paddle.optimizer.SGD(config["rate"]), strategy).minimize(loss)
    return paddle, fleet, loss


def serve(config):
    """Serve until killed: Paddle's server does not end otherwise."""
    _, fleet, _ = program(config)
    fleet.init_server()
    fleet.run_server()


def train(config, out):
    """Train on demand. Dense parameters are pulled before each, as the threads of `train_from_dataset` do."""
    import numpy

    paddle, fleet, loss = program(config)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    runtime = fleet.fleet._runtime_handle
    from paddle.distributed.ps.the_one_ps import get_the_one_recv_context
    from paddle.distributed.ps.utils import public

    send = public.get_the_one_send_context(runtime.context, split_dense_table=False, ep_list=runtime.endpoints)
    receive = get_the_one_recv_context(runtime.context, split_dense_table=False)
    data = numpy.load(config["data"])
    feed = {name: data[name] for name in ("inputs", "labels", "ids")}
    main = paddle.static.default_main_program()

    def step():
        runtime._pull_all_dense(runtime.scopes, send, receive)
        (value,) = executor.run(main, feed=feed, fetch_list=[loss])
        return float(value.reshape(-1)[0])

    out.write(json.dumps({"ready": paddle.__version__, "first": step()}) + "\n")
    out.flush()
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            last = step()
        out.write(json.dumps({"seconds": time.perf_counter() - began, "loss": last}) + "\n")
        out.flush()


def run():
    """Run the server or the trainer that the argument describes."""
    config = json.loads(sys.argv[1])
    # Paddle writes to standard output, so that is redirected and only the answers go there.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    environment(config)
    if config["role"] == "server":
        serve(config)
    else:
        train(config, out)


if __name__ == "__main__":
    run()
