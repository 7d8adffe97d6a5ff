import time
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main():
    dist.init_process_group("nccl")
    net = DDP(model)
    started = time.time()
    for batch in loader:
        out = net(batch)
        out.sum().backward()
        if time.time() - started > 3600:
            break

main()
