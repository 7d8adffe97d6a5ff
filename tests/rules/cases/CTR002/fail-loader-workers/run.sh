docker run --rm --gpus all example/train:1 python train.py --num-workers 8
