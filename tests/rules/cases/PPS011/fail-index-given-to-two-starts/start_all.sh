#!/bin/bash
bash run.sh TRAINER 0 &
bash run.sh TRAINER 1 &
bash run.sh TRAINER 1 &
wait
