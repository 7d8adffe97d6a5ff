#!/bin/bash
ssh n0 docker run --gpus all --network host --ipc=host -e NODE_RANK=0 img bash run.sh &
ssh n1 docker run --gpus all --network host --ipc=host -e NODE_RANK=0 img bash run.sh &
