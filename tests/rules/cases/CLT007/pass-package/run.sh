#!/bin/bash
python paddle.py --job_dispatch_package=ws --local=0 --config=c.py
