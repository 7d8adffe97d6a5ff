export CUDA_DEVICE_MAX_CONNECTIONS=8
torchrun --nnodes=1 --nproc_per_node=8 --master_addr=node0 --node_rank=$RANK pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --tensor-model-parallel-size 4 --sequence-parallel
