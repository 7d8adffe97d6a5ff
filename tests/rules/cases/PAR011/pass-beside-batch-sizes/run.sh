torchrun --nnodes=2 --nproc_per_node=4 --master_addr=node0 --node_rank=$RANK pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 4
