#!/bin/bash
python -u -m paddle.distributed.launch --gpus "0,1,2,3,4,5,6,7" --nnodes 1 run_pretrain.py --tensor_parallel_degree $TP --per_device_train_batch_size 1
