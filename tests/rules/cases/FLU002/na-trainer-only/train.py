import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(0, pservers=os.getenv("EPS"), trainers=2)
