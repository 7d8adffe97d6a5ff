pip install megatron-core==0.16.1
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 2 --train-iters 100 --seq-length 2048 --max-position-embeddings 2048 --tensor-parallel-size 2
