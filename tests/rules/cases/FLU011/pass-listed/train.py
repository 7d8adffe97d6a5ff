import os

import paddle.fluid as fluid

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(
    trainer_id=int(os.environ["PADDLE_TRAINER_ID"]),
    trainers="10.0.0.1:6174,10.0.0.2:6174",
    current_endpoint="10.0.0.2:6174",
)
