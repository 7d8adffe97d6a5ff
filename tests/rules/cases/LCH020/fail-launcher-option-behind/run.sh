python -m paddle.distributed.launch tools/train.py --gpus 0,1 -c c.yml
