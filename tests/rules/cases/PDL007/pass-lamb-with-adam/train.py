import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init(is_collective=True)
strategy = fleet.DistributedStrategy()
strategy.lamb = True
adam = paddle.optimizer.Adam(0.1)
adam.minimize(loss)
