#!/bin/bash
python -m torch.distributed.launch --nproc_per_node=2 train.py --lr 0.1
