import paddle.distributed as dist

if dist.get_world_size() > 1:
    dist.init_parallel_env()
