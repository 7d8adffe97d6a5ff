export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_12:1
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
