import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.collective import fleet
from paddle.fluid.incubate.fleet.base import role_maker
import paddle

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
img = fluid.data("img", [None, 1, 28, 28]); label = fluid.data("label", [None, 1], dtype="int64")
pred = fluid.layers.fc(img, 10, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(pred, label))
opt = fleet.distributed_optimizer(fluid.optimizer.SGD(0.01))
opt.minimize(loss)
place = fluid.CUDAPlace(fleet.worker_index() % 8)
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
bs = 32 * (1 + fleet.worker_index())
reader = paddle.batch(paddle.dataset.mnist.train(), batch_size=bs)
feeder = fluid.DataFeeder([img, label], place)
for epoch in range(10):
    for batch in reader():
        exe.run(fleet.main_program, feed=feeder.feed(batch), fetch_list=[loss])
