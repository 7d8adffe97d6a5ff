#!/bin/bash
CUDA_VISIBLE_DEVICES=0,1 bash run.sh &
CUDA_VISIBLE_DEVICES=2,3 bash run.sh &
wait
