docker run --rm nvcr.io/nvidia/pytorch:24.05-py3 nvidia-smi
