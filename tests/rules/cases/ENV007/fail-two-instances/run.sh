CUDA_VISIBLE_DEVICES=MIG-6a0f,MIG-2c31 torchrun --nproc_per_node=2 train.py
