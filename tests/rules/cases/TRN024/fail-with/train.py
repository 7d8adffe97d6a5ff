import argparse
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models
import os

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=90)
    args = p.parse_args()
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = DDP(models.resnet50().cuda(local), device_ids=[local])
    data = datasets.FakeData()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, num_workers=8, pin_memory=True)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    with torch.profiler.profile(with_stack=True) as prof:
     for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda(local)), y.cuda(local))
            opt.zero_grad(); loss.backward(); opt.step()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), f"ckpt_{epoch}.pt")

if __name__ == "__main__":
    main()
