"""Fine-tune a model on the GPUs of all pods."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from model import build_dataset, build_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = DistributedDataParallel(build_model().cuda())
    sampler = DistributedSampler(build_dataset("train"), shuffle=True)
    loader = DataLoader(build_dataset("train"), batch_size=8, sampler=sampler, num_workers=4, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
