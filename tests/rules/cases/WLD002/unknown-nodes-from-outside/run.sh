#!/bin/bash
deepspeed --hostfile=hostfile --num_nodes=$NODES train.py
