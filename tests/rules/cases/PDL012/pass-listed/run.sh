#!/bin/bash
python -m paddle.distributed.launch --cluster_node_ips=10.0.0.1,10.0.0.2 --node_ip=10.0.0.2 --selected_gpus=0,1 train.py
