python -m paddle.distributed.launch --nproc_pernode 4 train.py
