from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(data)
fit(model, DataLoader(data, batch_size=8, sampler=sampler))
