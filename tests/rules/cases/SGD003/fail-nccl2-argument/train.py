import os, argparse
import paddle
import paddle.fluid as fluid

def net():
    img = fluid.layers.data("img", shape=[784]); label = fluid.layers.data("label", shape=[1], dtype="int64")
    h = fluid.layers.fc(img, 8000, act="relu")
    pred = fluid.layers.fc(h, 10, act="softmax")
    return img, label, fluid.layers.mean(fluid.layers.cross_entropy(pred, label))

def main():
    role = os.getenv("TRAINING_ROLE", "TRAINER")
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    img, label, loss = net()
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    eps = os.getenv("PADDLE_TRAINER_ENDPOINTS")
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(trainer_id, trainers=eps, sync_mode=False, current_endpoint=os.getenv("PADDLE_CURRENT_ENDPOINT"))
    place = fluid.CUDAPlace(0)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder([img, label], place)
    pe = fluid.ParallelExecutor(True, loss_name=loss.name, num_trainers=2, trainer_id=trainer_id)
    for p in range(10):
        for data in paddle.batch(paddle.dataset.mnist.train(), 64)():
            pe.run(feed=feeder.feed(data), fetch_list=[loss.name])
    exe.close()
main()
