#!/bin/bash
fleetrun --master=10.0.0.1:8090 --nnodes=2 --trainer_num =3 --server_num=1 train.py
