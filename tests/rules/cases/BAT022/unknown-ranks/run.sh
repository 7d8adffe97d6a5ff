#!/bin/bash
torchrun --nnodes=2 --nproc_per_node=$GPUS --rdzv_backend=c10d --rdzv_endpoint=node0:29400 -m torchtitan.train --job.config_file llama.toml
