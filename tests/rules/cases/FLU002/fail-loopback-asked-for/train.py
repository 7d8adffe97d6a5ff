import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(0, pservers="10.0.0.1:6174,10.0.0.2:6174", trainers=2)
t.get_pserver_program("127.0.0.1:6174")
