#!/bin/bash
python paddle.py --job_dispatch_package=ws --ports_num_for_sparse=$N --trainer_count=10 --local=0
