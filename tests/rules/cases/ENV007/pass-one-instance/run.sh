CUDA_VISIBLE_DEVICES=MIG-6a0f torchrun --nproc_per_node=1 train.py
