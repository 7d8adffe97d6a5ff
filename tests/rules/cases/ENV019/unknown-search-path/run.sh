export PATH=/opt/a
export PATH=/opt/b
torchrun --nproc_per_node=2 train.py
