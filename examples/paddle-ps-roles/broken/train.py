import argparse

import paddle
import paddle.distributed.fleet as fleet
import yaml

from model import WideDeep


def main():
    paddle.enable_static()
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    config = yaml.safe_load(open(parser.parse_args().config))

    fleet.init()
    model = WideDeep(config)
    loss = model.net()

    strategy = fleet.DistributedStrategy()
    strategy.a_sync = False
    strategy.a_sync_configs = {"k_steps": 100}
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.01), strategy)
    optimizer.minimize(loss)

    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    else:
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        fleet.init_worker()
        dataset = model.dataset()
        for epoch in range(config["epochs"]):
            exe.train_from_dataset(paddle.static.default_main_program(), dataset)
        exe.close()


if __name__ == "__main__":
    main()
