import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

e = fluid.layers.embedding(x, size=[10000000, 16])
