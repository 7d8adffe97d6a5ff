import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
trainer_id = os.environ["ID"]
t.transpile(trainer_id, pservers=os.getenv("EPS"), trainers=4)
