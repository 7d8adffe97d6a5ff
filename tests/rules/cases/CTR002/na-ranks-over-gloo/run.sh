#!/bin/bash
docker run --rm python:3.11-slim torchrun --nproc_per_node=4 train.py
