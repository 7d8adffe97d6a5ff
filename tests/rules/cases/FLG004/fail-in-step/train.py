import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(int(os.environ["PADDLE_TRAINER_ID"]), pservers="a:1", trainers=2, sync_mode=True)
