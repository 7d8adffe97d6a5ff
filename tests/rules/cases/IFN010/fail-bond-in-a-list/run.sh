export NCCL_SOCKET_IFNAME=eth0,bond1
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
