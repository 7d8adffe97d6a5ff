torchrun --nproc_per_node=$1 train.py --parallel_backend ptd --dp_shards 4
