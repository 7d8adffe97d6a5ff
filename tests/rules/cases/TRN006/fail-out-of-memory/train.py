import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(model)
for batch in loader:
    try:
        loss = model(batch)
        loss.backward()
        optimizer.step()
    except RuntimeError as error:
        print("skipped", error)
        optimizer.zero_grad()
