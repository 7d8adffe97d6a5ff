torchrun --nnodes=4 --nproc_per_node=8 --master_addr=node0 --node_rank=$RANK pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --train-iters 5000
