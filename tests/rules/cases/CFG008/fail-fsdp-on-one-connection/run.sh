export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 pretrain_gpt.py --use-torch-fsdp2 --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 0.1 --bf16
