import horovod.torch as hvd

hvd.init()
torch.cuda.set_device(hvd.local_rank())
opt = hvd.DistributedOptimizer(opt, named_parameters=model.named_parameters())
