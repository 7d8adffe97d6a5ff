docker run --rm --runtime=nvidia nvcr.io/nvidia/pytorch:24.05-py3 python train.py
