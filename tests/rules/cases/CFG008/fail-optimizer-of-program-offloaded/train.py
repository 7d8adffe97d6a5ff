import argparse

import deepspeed
import torch
from net import Net

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--deepspeed_config")
args = parser.parse_args()
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
deepspeed.initialize(args=args, model=net, optimizer=optimizer)
