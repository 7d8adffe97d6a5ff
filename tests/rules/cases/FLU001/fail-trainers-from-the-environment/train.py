import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(int(os.getenv("ID")), pservers=os.getenv("EPS"), trainers=os.getenv("TRAINERS"))
