from torch.utils.data import DataLoader


def loader(data, rank):
    return DataLoader(data, batch_size=64 if rank == 0 else 32)
