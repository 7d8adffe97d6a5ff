#!/bin/bash
tmux send-keys -t a:0 'bash run.sh 0' C-m
tmux send-keys -t a:1 'bash run.sh 1' C-m
tmux send-keys -t a:2 'bash run.sh 1' C-m
