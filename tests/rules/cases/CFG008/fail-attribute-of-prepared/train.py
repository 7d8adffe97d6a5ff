import torch
from accelerate import Accelerator
from net import Net

accelerator = Accelerator()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net, optimizer = accelerator.prepare(net, optimizer)
print(net.config)
