import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

dataset = paddle.distributed.QueueDataset()
if args.shuffle:
    dataset.global_shuffle(fleet)
