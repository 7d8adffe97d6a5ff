import torch.distributed as dist
print 'hello'
