import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"k_steps": 100}
