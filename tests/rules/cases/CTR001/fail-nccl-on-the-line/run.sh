docker run --rm example/train:1 python train.py --backend nccl
