docker run --gpus all nvidia/cuda:12.1.0-devel-ubuntu22.04 bash -c 'pip install torch==2.1.0+cu118 deepspeed==0.14.0 && torchrun --nproc_per_node=8 train.py'
