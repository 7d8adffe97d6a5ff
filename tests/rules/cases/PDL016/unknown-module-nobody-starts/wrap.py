from paddle.distributed import fleet


def wrap(model):
    return fleet.distributed_model(model)
