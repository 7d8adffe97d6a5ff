import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

dataset.set_filelist(os.listdir("data"))
