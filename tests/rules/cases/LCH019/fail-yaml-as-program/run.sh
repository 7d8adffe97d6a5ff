python -m paddle.distributed.launch --gpus 0,1 configs/yolo.yml
