from torch.utils.data import DataLoader, DistributedSampler
sampler = DistributedSampler(data, shuffle=False)
for epoch in range(3):
    pass
