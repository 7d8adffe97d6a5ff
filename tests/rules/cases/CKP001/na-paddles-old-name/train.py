import paddle

paddle.distributed.init_parallel_env()
local_rank = paddle.distributed.ParallelEnv().local_rank
for step in range(1000):
    if step % 100 == 0 and local_rank == 0:
        paddle.save(model.state_dict(), "out/model.pdparams")
