import horovod.torch as hvd

def wrap(opt, names):
    return hvd.DistributedOptimizer(opt, named_parameters=names)
