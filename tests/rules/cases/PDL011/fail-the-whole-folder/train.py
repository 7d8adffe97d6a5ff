import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init()
files = [os.path.join("data", x) for x in os.listdir("data")]
dataset.set_filelist(files)
