#!/bin/bash
deepspeed --hostfile=hostfile --include=w1:0,1@w2 fit.py
