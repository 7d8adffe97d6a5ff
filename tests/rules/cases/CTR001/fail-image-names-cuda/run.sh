docker run --rm -it example/cuda-train:1 python train.py
