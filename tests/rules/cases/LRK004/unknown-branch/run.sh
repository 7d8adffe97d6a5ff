#!/bin/bash
if [ -n "$DEBUG" ]; then
  python fit.py
else
  torchrun --nproc_per_node=2 fit.py
fi
