from torch.utils.data import DataLoader

loader = DataLoader(data, batch_sampler=batches, drop_last=True)
