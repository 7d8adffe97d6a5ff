#!/bin/bash
python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 run_pretrain.py --model_name_or_path model --tensor_parallel_degree 8 --per_device_train_batch_size 1
