import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

opt.minimize(loss)
test = main.clone(for_test=True)
