import paddle
import setup_ranks

model = paddle.DataParallel(net)
