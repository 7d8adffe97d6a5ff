import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

e = fluid.layers.embedding(x, size=[1000000, 64])
f = fluid.layers.fc(input=e, size=400)
config = fluid.DistributeTranspilerConfig()
config.slice_var_up = False
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers="10.0.0.1:6174,10.0.0.2:6174,10.0.0.3:6174", trainers=2)
