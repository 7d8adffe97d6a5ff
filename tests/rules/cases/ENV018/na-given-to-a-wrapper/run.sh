tmux new-session -d -e NCCL_DEBUG=INFO -e OMP_NUM_THREADS=4 torchrun --standalone --nproc_per_node=8 train.py
