srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=node1:29500 train.py
