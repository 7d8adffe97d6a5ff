#!/bin/bash
set -e
cd "$(dirname "$0")"
export GLOO_SOCKET_IFNAM=eth0
torchrun --nnodes=1 --nproc_per_node=2 train.py --epochs 3 2>&1 | tee train.log
