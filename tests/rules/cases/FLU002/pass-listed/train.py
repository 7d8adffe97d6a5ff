import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
eps = "10.0.0.1:6174,10.0.0.2:6174"
t.transpile(0, pservers=eps, trainers=2)
t.get_pserver_program("10.0.0.2:6174")
