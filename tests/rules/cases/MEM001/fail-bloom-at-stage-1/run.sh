deepspeed --num_gpus 8 train.py --model_name_or_path bigscience/bloom-176b --deepspeed ds.json
