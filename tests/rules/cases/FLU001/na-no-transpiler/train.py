import os

import paddle.fluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
