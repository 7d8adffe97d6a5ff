torchrun --nproc_per_node=2 --master_port=$1 train.py
