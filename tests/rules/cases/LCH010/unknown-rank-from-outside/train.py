import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int)
parser.add_argument("--rank", type=int)
args = parser.parse_args()
dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", world_size=args.world_size, rank=args.rank)
