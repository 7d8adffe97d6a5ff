MODEL=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 2048 --num-experts 64)
