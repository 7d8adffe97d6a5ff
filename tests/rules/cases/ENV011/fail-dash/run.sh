#!/bin/bash
export NCCL_DEBUG=INFO
export NCCL_IB-DISABLE="1"
accelerate launch train.py
