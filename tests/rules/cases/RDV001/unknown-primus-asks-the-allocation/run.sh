#!/bin/bash
export NNODES=4
./primus-cli direct -- train pretrain --config exp.yaml --micro_batch_size 1
