python -m paddle.distributed.launch --gpus 0,1,2,3 run.py --amp_master_grad true --sharding stage3
