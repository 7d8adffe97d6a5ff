#!/bin/bash
deepspeed --num_gpus=4 train.py --do_train --deepspeed ds.json
