#!/bin/bash
deepspeed --include=$HOSTS train.py
