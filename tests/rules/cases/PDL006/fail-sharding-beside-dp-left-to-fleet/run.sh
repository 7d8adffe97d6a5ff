python -m paddle.distributed.launch --devices 0,1,2,3 train.py
