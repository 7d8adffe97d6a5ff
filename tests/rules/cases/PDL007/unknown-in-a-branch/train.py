import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init(is_collective=True)
strategy = fleet.DistributedStrategy()
if args.dgc:
    strategy.dgc = True
