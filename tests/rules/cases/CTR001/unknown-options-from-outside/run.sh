docker run --rm $DOCKER_ARGS example/cuda-train:1 python train.py
