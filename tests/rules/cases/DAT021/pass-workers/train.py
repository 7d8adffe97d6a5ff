from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8, num_workers=4, prefetch_factor=4, persistent_workers=True)
batched = DataLoader(data, batch_sampler=batches, num_workers=4)
