composer --nproc 8 train.py
