#!/bin/bash
source model.sh
PARALLEL=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL[@]} ${PARALLEL[@]} --micro-batch-size 1 --seq-length 2048 --train-iters 10
