import argparse

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from net import Net

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--deepspeed_config")
args = parser.parse_args()
net = Net()
AdamOptimizer = DeepSpeedCPUAdam if args.offload else FusedAdam
optimizer = AdamOptimizer(net.parameters())
deepspeed.initialize(args=args, model=net, optimizer=optimizer)
