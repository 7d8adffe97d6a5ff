import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

x = fluid.layers.data(name="x", shape=[13])
y = fluid.layers.fc(input=x, size=1)
c = fluid.layers.conv2d(x, 3, 3)
t = fluid.DistributeTranspiler()
t.transpile(0, pservers="10.0.0.1:6174,10.0.0.2:6174,10.0.0.3:6174,10.0.0.4:6174", trainers=2)
