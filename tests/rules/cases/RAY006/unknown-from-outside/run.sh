#!/bin/bash
ray job submit --address $RAY -- python train.py
