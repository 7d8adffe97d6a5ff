from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, best):
    model = DDP(model)
    for batch in loader:
        loss = model(batch)
        loss.backward()
        if loss.item() < best:
            break
