import os

import paddle.fluid as fluid

fluid.memory_optimize(fluid.default_main_program())
