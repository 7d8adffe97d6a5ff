"""Entry point of the pretraining job: the process group, then the library's own training loop."""

import argparse
from datetime import timedelta

import torch.distributed as dist


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=8)
    parser.add_argument("--train-iters", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1.0e-4)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--data-path", required=True)
    parser.add_argument("--distributed-timeout-minutes", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    dist.init_process_group("nccl", timeout=timedelta(minutes=args.distributed_timeout_minutes))
    from gpt import pretrain

    pretrain(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
