deepspeed --num_gpus 8 train.py --model_name_or_path ./checkpoints/mine --deepspeed ds.json
