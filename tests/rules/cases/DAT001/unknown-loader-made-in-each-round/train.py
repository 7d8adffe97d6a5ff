from torch.utils.data import DataLoader, DistributedSampler

for fold in range(5):
    sampler = DistributedSampler(folds[fold])
    loader = DataLoader(folds[fold], batch_size=8, sampler=sampler)
    for x in loader:
        step(x)
