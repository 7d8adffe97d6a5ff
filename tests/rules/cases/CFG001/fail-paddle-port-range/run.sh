python -m paddle.distributed.launch --ips 10.0.0.1,10.0.0.2 --start_port 6170-6180 --devices 0,1 train.py
