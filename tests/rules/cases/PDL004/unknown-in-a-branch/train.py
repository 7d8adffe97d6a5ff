import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
opt = fluid.optimizer.SGD(0.1)
opt.minimize(loss)
if args.train:
    exe.run(fluid.default_main_program(), feed=data, fetch_list=[loss])
