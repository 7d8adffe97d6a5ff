PADDLE_TRAINER_ID=0 python train.py
