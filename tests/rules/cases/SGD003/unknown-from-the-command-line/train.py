import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init(is_collective=args.collective)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
