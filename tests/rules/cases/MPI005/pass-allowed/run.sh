#!/bin/bash
docker run --ipc=host --net=host --gpus all image mpirun --allow-run-as-root -np 8 -x NCCL_DEBUG=INFO python train.py
