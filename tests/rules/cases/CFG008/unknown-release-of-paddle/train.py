import paddle
from paddle.autograd import PyLayer


class Scale(PyLayer):
    pass


def forward(x):
    return Scale.apply(x)


paddle.distributed.init_parallel_env()
model = paddle.DataParallel(paddle.nn.Linear(4, 4))
