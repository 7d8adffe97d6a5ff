import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.split_method = METHODS[args.split]
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers="10.0.0.1:6174,10.0.0.2:6174", trainers=2)
