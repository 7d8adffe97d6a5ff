docker run --gpus all my/trainer:latest torchrun --nnodes=4 --nproc_per_node=8 --node_rank=$RANK --master_addr=node0 train.py
