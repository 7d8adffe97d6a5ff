import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.runtime_split_send_recv = True
config.sync_mode = False
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers=eps, trainers=2, sync_mode=False)
