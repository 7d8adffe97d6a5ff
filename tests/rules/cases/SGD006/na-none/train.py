import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init()
strategy = fleet.DistributedStrategy()
