import torch
import torch.distributed as dist
from model import batches, build

dist.init_process_group("nccl")
model = build().cuda().half()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for batch in batches():
    scaler.scale(model(batch).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
