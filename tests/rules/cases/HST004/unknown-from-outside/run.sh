#!/bin/bash
deepspeed --hostfile=hostfile --include=$PICK fit.py
