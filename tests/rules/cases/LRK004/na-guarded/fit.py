import os

import torch.distributed as dist


def main():
    if "LOCAL_RANK" in os.environ:
        local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")


if __name__ == "__main__":
    main()
