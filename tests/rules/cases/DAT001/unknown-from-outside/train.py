from torch.utils.data import DataLoader, DistributedSampler
sampler = DistributedSampler(data, shuffle=options.shuffle)
for epoch in range(3):
    pass
