import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.mode = args.mode
t = fluid.DistributeTranspiler(config=config)
t.transpile(rank, trainers=os.getenv("EPS"))
pe = fluid.ParallelExecutor(use_cuda=True, loss_name=loss.name)
