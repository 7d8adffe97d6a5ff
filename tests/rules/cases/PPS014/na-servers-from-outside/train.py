import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

x = fluid.layers.data(name="x", shape=[13])
y = fluid.layers.fc(input=x, size=1)
t = fluid.DistributeTranspiler()
t.transpile(0, pservers=os.getenv("EPS"), trainers=2)
