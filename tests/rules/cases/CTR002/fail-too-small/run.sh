docker run --rm --gpus all --shm-size=64m nvcr.io/nvidia/pytorch:24.05-py3 torchrun --nproc_per_node=8 train.py
