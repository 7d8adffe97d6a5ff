python -m paddle.distributed.launch --gpus 0,1,2,3 run.py --pipeline_parallel_degree 2 --sharding stage2
