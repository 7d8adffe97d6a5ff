import torch
import horovod.torch as hvd
from torchvision import models, datasets
hvd.init()
torch.cuda.set_device(hvd.local_rank())
model = models.resnet50().cuda()
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), named_parameters=model.named_parameters())
data = datasets.FakeData()
sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(data, 64, sampler=sampler, num_workers=4)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(opt, root_rank=0)
for e in range(90):
    sampler.set_epoch(e)
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        opt.step()
    if hvd.rank() == 0:
        torch.save(model.state_dict(), f"c{e}.pt")
