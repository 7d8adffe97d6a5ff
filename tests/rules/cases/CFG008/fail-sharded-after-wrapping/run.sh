python -m paddle.distributed.launch --gpus=0,1 train.py
