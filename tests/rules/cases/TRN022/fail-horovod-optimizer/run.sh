horovodrun -np 8 python train.py
