#!/bin/bash
export MASTER_PORT=6000
torchrun $ARGS train.py
