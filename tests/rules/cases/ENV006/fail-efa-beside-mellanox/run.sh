export FI_PROVIDER=efa
export NCCL_IB_HCA=mlx5
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
