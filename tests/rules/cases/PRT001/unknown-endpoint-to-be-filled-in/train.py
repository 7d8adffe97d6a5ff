import paddle.distributed as dist

dist.init_parallel_env()
