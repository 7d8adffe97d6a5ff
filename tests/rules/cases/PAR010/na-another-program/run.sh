torchrun --nproc_per_node=8 gnn.py --num-layers 3
