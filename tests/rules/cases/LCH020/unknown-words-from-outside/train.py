import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--lr", type=float)
args = parser.parse_args()
dist.init_process_group("nccl")
