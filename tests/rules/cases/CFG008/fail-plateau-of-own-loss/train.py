import torch
import torch.distributed as dist
from model import batches, build

dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for batch in batches():
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    scheduler.step(loss)
