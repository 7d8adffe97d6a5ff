torchrun --nproc_per_node=2 train.py --conf c.yml --lr=0.1
