#!/bin/bash
deepspeed --hostfile=hostfile --include=w1:2,3 fit.py
