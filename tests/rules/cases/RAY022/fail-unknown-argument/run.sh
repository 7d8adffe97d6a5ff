#!/bin/bash
pip install -r requirements.txt
ray job submit --working-dir . -- python train.py
