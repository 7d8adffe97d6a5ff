from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

def loader(train_set):
    return DataLoader(train_set, batch_size=32, shuffle=True)

def wrapped(net):
    return DDP(net)
