from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(data)
dl = DataLoader(data, batch_size=8, sampler=sampler)
for e in range(3):
    for i, x in enumerate(dl):
        step(x)
