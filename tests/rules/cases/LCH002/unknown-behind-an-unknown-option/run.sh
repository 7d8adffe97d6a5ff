accelerate launch --confg acc.yaml --num_processes 4 train.py
