import math

import torch.distributed as dist

dist.init_process_group("nccl")


class SizedSampler:
    def __init__(self, count, rank, num_replicas, batch):
        self.each = math.ceil(count / num_replicas)
        mine = list(range(count))[rank::num_replicas]
        self.batches = []
        for start in range(0, self.each, batch):
            chosen = mine[start : start + batch]
            chosen += mine[: batch - len(chosen)]
            self.batches.append(chosen)
