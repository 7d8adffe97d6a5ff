import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init()
files = os.listdir("data")
dataset.set_filelist(fleet.util.get_file_shard(files))
