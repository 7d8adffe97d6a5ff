from torch.utils.data import DataLoader, DistributedSampler
sampler = make()
loader = DataLoader(data, shuffle=sampler is None, sampler=sampler)
