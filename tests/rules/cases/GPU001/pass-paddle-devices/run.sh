#!/bin/bash
python -m paddle.distributed.launch --nproc_per_node=4 --gpus 0,1,2,3 fit.py
