import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
if args.export_onnx:
    if not os.path.exists("onnx"):
        os.makedirs("onnx")
