#!/bin/bash
python -u -m paddle.distributed.launch --gpus "0,1,2,3,4,5,6,7" --nnodes 1 run_pretrain.py --tensor_parallel_degree 2 --pipeline_parallel_degree 2 --sharding_parallel_degree -1 --per_device_train_batch_size 1
