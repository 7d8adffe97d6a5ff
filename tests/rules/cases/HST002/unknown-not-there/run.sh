#!/bin/bash
deepspeed --hostfile=hosts.txt train.py
