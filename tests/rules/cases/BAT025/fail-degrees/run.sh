torchrun --nproc_per_node=2 train.py --parallel_backend ptd --dp_shards 4
