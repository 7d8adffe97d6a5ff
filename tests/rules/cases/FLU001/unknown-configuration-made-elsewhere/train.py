import os

import paddle.fluid as fluid

import conf

t = fluid.DistributeTranspiler(config=conf.make())
t.transpile(int(os.getenv("ID")), trainers=os.getenv("EPS"))
