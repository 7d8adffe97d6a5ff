import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(0, pservers=os.environ["EPS"], trainers=2)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(t.get_trainer_program(), feed=batch, fetch_list=[loss])
