import horovod.torch as hvd
