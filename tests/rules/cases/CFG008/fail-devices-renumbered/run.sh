CUDA_VISIBLE_DEVICES=2 deepspeed train.py
