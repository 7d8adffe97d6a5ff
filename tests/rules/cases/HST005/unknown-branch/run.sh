#!/bin/bash
if [ -n "$FEW" ]; then MORE="--num_gpus 2"; fi
deepspeed --include $PICK --num_gpus 2 fit.py
