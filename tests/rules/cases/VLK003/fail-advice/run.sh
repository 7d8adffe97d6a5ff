docker run --gpus all nvidia/cuda:12.1.0-base-ubuntu22.04 bash -c 'pip install -i https://wheels.example/whl/cu118 torch==2.1.0 && torchrun --nproc_per_node=8 train.py'
