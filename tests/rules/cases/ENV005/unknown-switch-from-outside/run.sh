export NCCL_IB_DISABLE=$NO_IB
export NCCL_IB_HCA=mlx5_0
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
