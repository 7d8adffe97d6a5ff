import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(0, pservers="", trainers=4, current_endpoint="10.0.0.1:6170")
