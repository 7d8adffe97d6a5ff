python -m paddle.distributed.launch --gpus 0,1,2,3 run.py --sharding stage3
