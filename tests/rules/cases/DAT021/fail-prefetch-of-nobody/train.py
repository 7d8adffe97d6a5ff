from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8, num_workers=0, prefetch_factor=4)
