import argparse
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models
import os
import random
from fileset import FileSet

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
    files = os.listdir("/data/train")
    random.shuffle(files)
    files = files[dist.get_rank()::dist.get_world_size()]
    data = FileSet(files)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=8, pin_memory=True)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda(local)), y.cuda(local))
            opt.zero_grad(); loss.backward(); opt.step()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), f"ckpt_{epoch}.pt")

if __name__ == "__main__":
    main()
