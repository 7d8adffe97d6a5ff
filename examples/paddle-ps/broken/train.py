"""Click-through-rate model on parameter servers, asynchronous updates."""

import paddle
import paddle.distributed.fleet as fleet

from ctr_model import build_network, train_data


def main() -> None:
    paddle.enable_static()
    fleet.init(is_collective=False)

    loss = build_network()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(learning_rate=0.01), strategy)
    optimizer.minimize(loss)

    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return

    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    for epoch in range(4):
        exe.train_from_dataset(paddle.static.default_main_program(), train_data(epoch))
    fleet.stop_worker()


if __name__ == "__main__":
    main()
