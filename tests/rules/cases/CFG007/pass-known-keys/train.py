import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.amp = True
strategy.amp_configs = {"init_loss_scaling": 1024.0, "use_pure_fp16": True}
fleet.init(is_collective=True, strategy=strategy)
