#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1 bash run.sh 29500 &
CUDA_VISIBLE_DEVICES=1,2 bash run.sh 29501 &
wait
