export NCCL_SOCKET_IFNAME=eno1
export NCCL_SOCKET_IFNAME=enp96s0f0
torchrun --nproc_per_node=2 train.py
