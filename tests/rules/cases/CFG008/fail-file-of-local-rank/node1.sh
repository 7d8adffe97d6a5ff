torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 --master_addr=a --master_port=1234 train.py
