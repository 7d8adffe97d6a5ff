git checkout $1
CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=1 --master_port=29500 train.py > log0 2>&1 &
CUDA_VISIBLE_DEVICES=1 torchrun --nproc_per_node=1 --master_port=29501 train.py > log1 2>&1 &
wait
