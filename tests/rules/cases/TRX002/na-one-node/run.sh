deepspeed --num_nodes 1 --num_gpus 8 --master_addr node0 train.py --deepspeed_config ds.json
