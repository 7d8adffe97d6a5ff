import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

dataset = fluid.DatasetFactory().create_dataset()
dataset.set_filelist(["a", "b"])
dataset.local_shuffle()
