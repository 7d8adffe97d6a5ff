import paddle
from paddle.distributed import fleet

fleet.init(is_collective=True)
size = 32 * (1 + fleet.worker_index())
sampler = paddle.io.DistributedBatchSampler(data, batch_size=size)
