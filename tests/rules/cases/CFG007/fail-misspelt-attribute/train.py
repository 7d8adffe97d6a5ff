import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.use_amp = True
fleet.init(is_collective=True, strategy=strategy)
