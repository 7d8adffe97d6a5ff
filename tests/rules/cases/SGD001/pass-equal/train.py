import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(int(os.environ["PADDLE_TRAINER_ID"]), pservers="a:1,b:1", trainers=2, sync_mode=True)
