docker run --rm example/train:1-cpu python train.py --backend gloo
