#!/bin/bash
# PaddleClas on two machines
ssh node-a 'cd /data/PaddleClas && python3 -m paddle.distributed.launch --ips="10.2.0.1,10.2.0.2" --gpus="0,1,2,3" tools/train.py -c ./ppcls/configs/ImageNet/ResNet/ResNet50.yaml -o DataLoader.Train.sampler.batch_size=64' &
ssh node-b 'cd /data/PaddleClas && python3 -m paddle.distributed.launch --ips="10.2.0.1,10.2.0.2" --gpus="0,1,2,3" tools/train.py -c ./ppcls/configs/ImageNet/ResNet/ResNet50.yaml -o DataLoader.Train.sampler.batch_size=128' &
wait
