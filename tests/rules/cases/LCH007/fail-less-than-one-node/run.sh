composer --nproc 8 --world_size 4 --node_rank 0 --master_addr 10.0.0.1 --master_port 7000 train.py
