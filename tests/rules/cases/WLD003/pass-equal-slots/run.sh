deepspeed --hostfile hostfile train_ds.py --deepspeed --deepspeed_config ds.json
