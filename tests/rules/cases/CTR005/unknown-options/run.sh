DEVICES=$(for d in /dev/infiniband/*; do echo --device=$d; done)
docker run --gpus all --network=host $DEVICES -e NCCL_IB_HCA=mlx5 nvcr.io/nvidia/pytorch:24.03-py3 torchrun --nnodes=2 --node_rank=$RANK --nproc_per_node=8 --master_addr=a --master_port=1234 train.py
