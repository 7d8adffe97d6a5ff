import argparse, os
import paddle
import paddle.distributed.fleet as fleet
paddle.enable_static()
p = argparse.ArgumentParser()
p.add_argument("--batch_size", type=int, default=1024)
args = p.parse_args()
fleet.init()
ids = paddle.static.data("ids", [None, 26], dtype="int64")
y = paddle.static.data("y", [None, 1], dtype="float32")
emb = paddle.static.nn.sparse_embedding(ids, size=[1000000, 16])
out = paddle.static.nn.fc(paddle.flatten(emb, 1), 1)
loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(out, y))
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
opt = fleet.distributed_optimizer(paddle.optimizer.SGD(0.01), strategy)
opt.minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    dataset = fleet.QueueDataset()
    dataset.init(batch_size=args.batch_size, thread_num=8, use_var=[ids, y], pipe_command="python reader.py")
    files = fleet.util.get_file_shard(sorted(os.listdir("data")))
    dataset.set_filelist(files)
    for e in range(3):
        exe.train_from_dataset(paddle.static.default_main_program(), dataset)
        if fleet.is_first_worker():
            fleet.save_persistables(exe, "model/%d" % e)
    fleet.stop_worker()
