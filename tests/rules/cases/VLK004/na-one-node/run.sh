docker run --gpus all my/trainer torchrun --nnodes=1 --nproc_per_node=8 --node_rank=$RANK --master_addr=node0 train.py
