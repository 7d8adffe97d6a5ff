#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
export NCCL_DEBUG=WARN
accelerate launch --config_file configs/two_nodes.yaml finetune.py --model mistral-7b --epochs 3
