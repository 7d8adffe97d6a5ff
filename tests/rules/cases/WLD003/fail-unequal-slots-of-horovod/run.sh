horovodrun -np 12 -H gpu01:8,gpu02:4 python train_hvd.py --batch-size 64
