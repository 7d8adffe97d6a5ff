torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 2048 --train-iters 100 $EXTRA_ARGS
