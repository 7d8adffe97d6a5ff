import os

import paddle.fluid as fluid

fluid.memory_optimize(fluid.default_main_program())
t = fluid.DistributeTranspiler()
t.transpile(0, pservers=os.getenv("EPS"), trainers=2)
