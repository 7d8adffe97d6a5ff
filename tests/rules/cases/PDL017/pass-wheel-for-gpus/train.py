import paddle

paddle.distributed.init_parallel_env()
