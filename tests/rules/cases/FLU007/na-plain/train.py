import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers=eps, trainers=2, sync_mode=False)
