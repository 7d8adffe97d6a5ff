docker run --rm --gpus all --ipc=host nvcr.io/nvidia/pytorch:24.05-py3 torchrun --nnodes=2 --node_rank=$RANK --nproc_per_node=8 --master_addr=$ADDR train.py
