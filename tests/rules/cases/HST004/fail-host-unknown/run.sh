#!/bin/bash
deepspeed --hostfile=hostfile --exclude=w3 fit.py
