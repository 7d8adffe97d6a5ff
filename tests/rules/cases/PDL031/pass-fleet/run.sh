python -m paddle.distributed.launch --server_num 1 --worker_num 2 train.py
