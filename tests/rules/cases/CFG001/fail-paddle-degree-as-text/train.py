import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": "2", "sharding_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
