import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.sync_mode = False
config.runtime_split_send_recv = args.split
t = fluid.DistributeTranspiler(config)
t.transpile(0, pservers=eps, trainers=2, sync_mode=False)
