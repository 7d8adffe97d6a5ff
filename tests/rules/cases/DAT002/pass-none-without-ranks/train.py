from torch.utils.data import DataLoader, DistributedSampler
sampler = None
if options.distributed:
    sampler = DistributedSampler(data)
loader = DataLoader(data, shuffle=False, sampler=sampler)
