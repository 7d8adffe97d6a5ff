#!/bin/bash
RANK=0 nohup bash run.sh > 0.log &
RANK=0 nohup bash run.sh > 1.log &
wait
