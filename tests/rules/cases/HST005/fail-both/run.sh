#!/bin/bash
deepspeed --include localhost:0,1 --num_gpus 2 fit.py
