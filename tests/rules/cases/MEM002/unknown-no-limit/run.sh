deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-2-70b-hf --deepspeed ds.json
