docker run --gpus all my/trainer torchrun --nnodes=$NNODES --nproc_per_node=8 --node_rank=$RANK --master_addr=node0 train.py
