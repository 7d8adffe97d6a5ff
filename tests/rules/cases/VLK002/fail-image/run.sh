docker run --gpus all pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime bash -c 'pip install torch==2.3.0 && torchrun --nproc_per_node=8 train.py'
