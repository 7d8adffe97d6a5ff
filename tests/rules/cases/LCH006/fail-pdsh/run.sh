#!/bin/bash
pdsh -w n[0-3] deepspeed --num_gpus=8 train.py
