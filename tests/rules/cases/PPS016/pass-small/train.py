import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

e = fluid.layers.embedding(x, size=[1000, 16])
t = fluid.DistributeTranspiler()
t.transpile(0, pservers="10.0.0.1:6174,10.0.0.2:6174", trainers=2)
