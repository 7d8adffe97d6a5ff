deepspeed --num_gpus 8 train.py --deepspeed ds.json --bf16 --output_dir out --per_device_train_batch_size 4
