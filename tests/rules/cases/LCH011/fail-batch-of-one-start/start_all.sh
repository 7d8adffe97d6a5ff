#!/bin/bash
ssh a bash run.sh 0 10.0.0.1 29500 8 &
ssh b bash run.sh 1 10.0.0.1 29500 8 &
ssh c bash run.sh 2 10.0.0.1 29500 16 &
wait
