import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

strategy = fleet.DistributedStrategy()
strategy.pipeline_configs = {"accumulate_steps": 8, "micro_batch_size": 4}
fleet.init(is_collective=True, strategy=strategy)
loader = paddle.io.DataLoader(data, batch_size=args.batch)
