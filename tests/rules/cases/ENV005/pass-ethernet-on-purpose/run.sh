export NCCL_IB_DISABLE=1
export NCCL_IB_HCA=
export NCCL_SOCKET_IFNAME=eth0
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
