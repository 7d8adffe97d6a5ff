import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

from model import loss

fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(learning_rate=0.1), strategy)
optimizer.minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    fleet.stop_worker()
