import os

import torch.distributed as dist


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")


if __name__ == "__main__":
    main()
