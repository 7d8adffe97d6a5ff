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
    main_prog, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_prog, startup):
        img, label, loss = net()
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, program=main_prog, startup_program=startup, pservers="10.0.0.1:6174,10.0.0.2:6174", trainers=2)
    place = fluid.CUDAPlace(0)
    exe = fluid.Executor(place)
    if role == "PSERVER":
        ep = os.getenv("PADDLE_CURRENT_ENDPOINT")
        prog = t.get_pserver_program(ep)
        exe.run(t.get_startup_program(ep, prog))
        exe.run(prog)
    else:
        exe.run(startup)
        for data in paddle.batch(paddle.dataset.mnist.train(), 64)():
            exe.run(t.get_trainer_program(), feed=fluid.DataFeeder([img, label], place).feed(data), fetch_list=[loss])
        exe.close()
main()
