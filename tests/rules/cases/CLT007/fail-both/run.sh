#!/bin/bash
python paddle.py --job_dispatch_package=ws --job_workspace=/home/paddle/JOB1 --local=0 --config=c.py
