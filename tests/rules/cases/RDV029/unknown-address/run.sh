if [ -n "$2" ]; then torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$1 --master_addr=me@$2 --master_port=29500 train.py; fi
