import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

paddle.distributed.init_parallel_env()
t = fluid.DistributeTranspiler()
t.transpile(0, pservers="a:1", trainers=2)
dataset.set_filelist(os.listdir("data"))
