python -m paddle.distributed.launch --gpus 0,1,2,3 train.py
