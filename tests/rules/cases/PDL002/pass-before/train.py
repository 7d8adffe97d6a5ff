import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

opt = fluid.optimizer.SGD(0.1)
test = fluid.default_main_program().clone(for_test=True)
opt.minimize(loss)
