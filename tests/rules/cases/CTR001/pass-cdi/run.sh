podman run --rm --device nvidia.com/gpu=all example/cuda-train:1 python train.py
