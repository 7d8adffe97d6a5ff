import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train_one_epoch(model, loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
    return loss.item()

def main():
    dist.init_process_group("nccl")
    model = DDP(net, device_ids=[local_rank])
    best, bad = 1e9, 0
    for epoch in range(100):
        loss = train_one_epoch(model, loader)
        if loss < best:
            best = loss
            bad = 0
        else:
            bad = bad + (loss > best)
        if bad > 5:
            break

main()
