#!/bin/bash
for r in PSERVER TRAINER; do if [ "$1" = x ]; then export TRAINING_ROLE=$r; fi; python train.py & done
wait
