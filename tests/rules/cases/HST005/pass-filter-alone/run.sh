#!/bin/bash
deepspeed --include localhost:0,1 fit.py
