import paddle
from paddle.distributed import fleet

model = paddle.nn.Linear(8, 8)
optimizer = paddle.optimizer.SGD(parameters=model.parameters())
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(optimizer)
