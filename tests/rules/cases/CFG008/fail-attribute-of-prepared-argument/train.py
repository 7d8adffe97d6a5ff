import torch
from accelerate import Accelerator
from evaluation import evaluate
from net import Net

accelerator = Accelerator()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net, optimizer = accelerator.prepare(net, optimizer)
evaluate(net)
