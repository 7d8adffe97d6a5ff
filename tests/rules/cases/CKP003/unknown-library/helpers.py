import os
import torch.distributed as dist

def main():
    dist.init_process_group("nccl")
    os.makedirs("results")

def launch():
    spawn(main)
