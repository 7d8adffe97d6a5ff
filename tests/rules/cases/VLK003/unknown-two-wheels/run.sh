docker run --gpus all nvidia/cuda:12.1.0-devel-ubuntu22.04 bash -c 'pip install torch==2.4.0+cu124 torchvision==0.19.0+cu118 && torchrun --nproc_per_node=8 train.py'
