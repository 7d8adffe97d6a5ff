#!/bin/bash
export RAY_ADDRESS=http://head:6379
ray job submit -- python train.py
