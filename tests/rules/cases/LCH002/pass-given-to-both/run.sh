python -m torch.distributed.launch --nproc_per_node 8 --nnodes 2 --node_rank 0 --master_addr=h1 train.py --nnodes 2 --nproc_per_node 8
