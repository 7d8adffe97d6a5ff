import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

opt = paddle.optimizer.SGD(0.1)
opt.minimize(loss)
