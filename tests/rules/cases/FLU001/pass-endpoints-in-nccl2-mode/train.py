import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(int(os.getenv("ID")), trainers=os.getenv("EPS"), current_endpoint=os.getenv("ME"))
