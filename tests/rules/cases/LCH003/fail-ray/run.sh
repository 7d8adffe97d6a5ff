#!/bin/bash
export http_proxy=http://proxy.site:3128
ray start --head --port=6379
python train.py
