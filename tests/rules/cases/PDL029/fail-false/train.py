import paddle
import paddle.distributed.fleet as fleet
paddle.enable_static()
fleet.init(is_collective=True)
x = paddle.static.data("x", [None, 784]); y = paddle.static.data("y", [None, 1], dtype="int64")
h = paddle.nn.functional.dropout(paddle.static.nn.fc(x, 128, activation="relu"), 0.5)
logits = paddle.static.nn.fc(h, 10)
loss = paddle.mean(paddle.nn.functional.cross_entropy(logits, y))
main_prog = paddle.static.default_main_program()
test_program = main_prog.clone(False)
opt = fleet.distributed_optimizer(paddle.optimizer.SGD(0.01))
opt.minimize(loss)
exe = paddle.static.Executor(paddle.CUDAPlace(fleet.worker_index()))
exe.run(paddle.static.default_startup_program())
from reader import train, test
for a, b in train():
    exe.run(feed={"x": a, "y": b}, fetch_list=[loss])
for a, b in test():
    exe.run(test_program, feed={"x": a, "y": b}, fetch_list=[loss])
