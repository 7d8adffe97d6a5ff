from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8, num_workers=args.workers, prefetch_factor=4)
