#!/bin/bash
deepspeed --master-port=29501 train.py
