import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
trainers = int(os.getenv("TRAINERS", "1"))
t.transpile(int(os.getenv("ID")), pservers=os.getenv("EPS"), trainers=trainers)
