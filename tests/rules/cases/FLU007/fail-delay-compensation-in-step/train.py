import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.enable_dc_asgd = True
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers=eps, trainers=2)
