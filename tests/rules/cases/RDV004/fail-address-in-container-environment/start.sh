#!/bin/bash
ssh n0 docker run -d --gpus all --network host --ipc=host --env-file node0.env img bash run.sh
ssh n1 docker run -d --gpus all --network host --ipc=host --env-file node1.env img bash run.sh
