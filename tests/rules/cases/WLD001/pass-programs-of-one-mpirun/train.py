import os
import torch.distributed as dist
dist.init_process_group("nccl", rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=3)
