#!/bin/bash
# Parameter-server training over four hosts: a server and a trainer on each pair.
#   servers  10.77.0.1:36001 10.77.0.2:36001
#   trainers 10.77.0.3:36002 10.77.0.4:36002
# Start on every host with its role and index:  ROLE=PSERVER INDEX=0 bash start.sh
set -e

export PADDLE_PSERVERS_IP_PORT_LIST=10.77.0.1:36001,10.77.0.2:36001
export PADDLE_TRAINER_ENDPOINTS=10.77.0.3:36002,10.77.0.3:36002
export PADDLE_TRAINERS_NUM=2
export GLOO_SOCKET_IFNAME=eth0
export FLAGS_check_nan_inf=0

if [ "$ROLE" = "PSERVER" ]; then
    if [ "$INDEX" = "0" ]; then
        TRAINING_ROLE=PSERVER POD_IP=10.77.0.1 PADDLE_PORT=36001 python train.py
    else
        TRAINING_ROLE=PSERVER POD_IP=10.77.0.9 PADDLE_PORT=36001 python train.py
    fi
else
    if [ "$INDEX" = "0" ]; then
        TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 POD_IP=10.77.0.3 PADDLE_PORT=36002 python train.py
    else
        TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=2 POD_IP=10.77.0.4 PADDLE_PORT=36002 python train.py
    fi
fi
