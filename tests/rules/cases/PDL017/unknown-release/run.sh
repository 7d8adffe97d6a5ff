python -m paddle.distributed.launch train.py
