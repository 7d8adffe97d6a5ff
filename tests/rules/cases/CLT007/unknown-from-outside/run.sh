#!/bin/bash
python paddle.py --job_dispatch_package=$WS --local=0 --config=c.py
