#!/bin/bash
# usage: trainer.sh           on the training host: all trainers
set -e
cd "$(dirname "$0")"
. ./cluster.env
export TRAINING_ROLE=TRAINER
for id in 1 2 3 4; do
  PADDLE_TRAINER_ID=$id python -u train.py --config config.yaml > trainer.$id.log 2>&1 &
done
wait
