#!/bin/bash
accelerate launch --num_processes 2 --num_machines 1 --mixed_precision fp61 fit.py
