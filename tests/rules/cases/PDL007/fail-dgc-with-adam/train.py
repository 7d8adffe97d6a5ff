import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init(is_collective=True)
strategy = fleet.DistributedStrategy()
strategy.dgc = True
opt = paddle.optimizer.Adam(0.1)
opt = fleet.distributed_optimizer(opt, strategy)
adam = paddle.optimizer.Adam(0.1)
adam.minimize(loss)
