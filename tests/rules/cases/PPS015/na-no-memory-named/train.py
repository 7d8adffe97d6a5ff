import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

e = fluid.layers.embedding(x, size=[100000000, 64], is_sparse=True)
adam = fluid.optimizer.Adam(0.1)
adam.minimize(loss)
