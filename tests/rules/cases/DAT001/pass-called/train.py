from torch.utils.data import DataLoader, DistributedSampler
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
