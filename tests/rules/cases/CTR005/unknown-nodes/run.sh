docker run --gpus all --network=host -e NCCL_IB_HCA=mlx5 nvcr.io/nvidia/pytorch:24.03-py3 torchrun --nnodes=$N --node_rank=$RANK --nproc_per_node=8 --master_addr=a --master_port=1234 train.py
