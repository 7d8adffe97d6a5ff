"""Fine-tune a small model with DeepSpeed."""

import argparse

import deepspeed
import torch
from torch.utils.data import DataLoader, DistributedSampler

from model import build_model, build_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed(dist_backend="nccl")
    model = build_model()
    dataset = build_dataset("train")
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=4, drop_last=True)
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()


if __name__ == "__main__":
    main()
