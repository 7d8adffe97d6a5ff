import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(rank, trainers=os.getenv("EPS"), current_endpoint=os.getenv("ME"))
pe = fluid.ParallelExecutor(use_cuda=True, loss_name=loss.name)
