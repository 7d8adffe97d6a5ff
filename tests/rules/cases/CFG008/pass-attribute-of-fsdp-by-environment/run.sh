export ACCELERATE_USE_FSDP=true
torchrun --nproc_per_node=4 train.py
