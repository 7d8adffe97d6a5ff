import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.amp_configs = {"init_loss_scalin": 1024.0}
fleet.init(is_collective=True, strategy=strategy)
