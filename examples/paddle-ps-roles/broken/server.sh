#!/bin/bash
# usage: server.sh NUMBER     on 10.20.0.11 and 10.20.0.12
set -e
cd "$(dirname "$0")"
. ./cluster.env
export TRAINING_ROLE=PSEVER
case "$1" in
  0) export POD_IP=10.20.0.11 PADDLE_PORT=6170 ;;
  1) export POD_IP=10.20.0.12 PADDLE_PORT=6170 ;;
esac
exec python -u train.py --config config.yaml
