export WORLD_SIZE=2
export RANK=0
torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK --nproc_per_node=8 --master_addr=n0 --master_port=29500 train.py
