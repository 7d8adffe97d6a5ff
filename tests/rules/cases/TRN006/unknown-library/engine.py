from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader):
    model = DDP(model)
    for batch in loader:
        try:
            model(batch).backward()
        except Exception:
            continue
