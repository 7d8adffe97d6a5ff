python -m paddle.distributed.launch --selected_gpus 0,1,2,3 train.py
