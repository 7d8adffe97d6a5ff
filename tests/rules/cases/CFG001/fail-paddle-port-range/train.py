from paddle.distributed import fleet

fleet.init(is_collective=True)
