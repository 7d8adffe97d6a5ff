export FI_PROVIDER=efa
export NCCL_SOCKET_IFNAME=^docker,lo
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=node0 train.py
