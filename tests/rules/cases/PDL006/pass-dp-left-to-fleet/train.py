import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": -1, "mp_degree": 4, "pp_degree": 1}
fleet.init(is_collective=True, strategy=strategy)
