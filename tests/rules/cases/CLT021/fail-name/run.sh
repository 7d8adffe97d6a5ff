#!/bin/sh
python paddle.py --job_dispatch_package=/root/job --dot_period=10 --ports_num_for_sparse=2 --log_period=50 --num_passes=10 --trainer_count=4 --saving_period=1 --local=0 --config=/root/job/trainer_config.py --save_dir=/root/job/output --use_gpu=0
