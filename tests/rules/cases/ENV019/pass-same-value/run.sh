export NCCL_DEBUG=INFO
echo first
export NCCL_DEBUG=WARN
torchrun --nproc_per_node=2 train.py
