#!/bin/bash
ssh a bash run.sh 0 &
ssh b bash run.sh 1 &
ssh c bash run.sh 2 &
wait
