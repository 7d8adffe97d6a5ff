import paddle
from net import Net
from paddle.distributed.sharding import group_sharded_parallel

paddle.distributed.init_parallel_env()
model = paddle.DataParallel(Net())
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
model, optimizer, _ = group_sharded_parallel(model, optimizer, "os_g")
