#!/bin/bash
export TF_CONFIG='{"cluster": {"worker": ["a:1"], "evaluator": ["b:1"]}, "task": {"type": "worker", "index": 0}}'
python train.py
