import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init(is_collective=True)
opt = fleet.distributed_optimizer(paddle.optimizer.SGD(0.1))
local = paddle.optimizer.SGD(0.1)
local.minimize(loss)
