export NCCL_DEBUG=WARN
torchrun --nnodes=16 --nproc_per_node=8 --master_addr=node0 train.py
