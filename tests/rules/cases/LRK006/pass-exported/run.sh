export NODE_RANK=0
torchrun --nproc_per_node=8 train.py
