MASTER_PORT=29501
export NCCL_DEBUG=WARN
torchrun --nproc_per_node=2 --master_port=$MASTER_PORT train.py
