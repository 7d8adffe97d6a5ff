#!/bin/bash
for r in PSERVER TRAINER; do TRAINING_ROLE=$r python train.py & done
wait
