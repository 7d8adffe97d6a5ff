#!/bin/bash
export https_proxy=http://p:3128
export TF_CONFIG='{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":0}}'
python train.py
