#!/bin/bash
for r in $ROLES; do TRAINING_ROLE=$r python train.py & done
wait
