import argparse

import deepspeed
import torch
from deepspeed.moe.layer import MoE

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--deepspeed_config")
args = parser.parse_args()


def build(experts):
    return MoE(hidden_size=4, expert=torch.nn.Linear(4, 4), num_experts=experts) if experts else torch.nn.Linear(4, 4)


net = build(0)
deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
