import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
import sys

if len(sys.argv) > 3:
    strategy.use_amp = True
fleet.init(is_collective=True, strategy=strategy)
