#!/bin/bash
for i in 0 1 1; do ssh host$i "cd /job && bash run.sh TRAINER $i" & done
wait
